"""What a study says of its arms, in words: what the figure ``comparison`` shows."""

from ddl_core.analysis.figures import comparison
from ddl_core.analysis.tables import runs_table, windows_table
from ddl_core.errors import RecordError
from ddl_core.records.paths import Tree
from ddl_core.spec.study import Study


def compare(study: Study, tree: Tree) -> str:
    """Return how fast each arm is against the reference, and how sure that is.

    Raises
    ------
    RecordError
        If the study's arms do not take turns, or none has measured yet.
    """
    if study.turns is None:
        raise RecordError(
            f"the arms of study {study.name!r} take no turns, so no window has a partner; "
            "give it `turns` with a reference, or see its medians with `ddl figures`"
        )
    runs, windows = runs_table(tree.runs), windows_table(tree.runs)
    own = runs[runs["study"] == study.name]
    points = comparison.points(own, windows[windows["study"] == study.name])
    lines = comparison.sentences(points)
    if not lines:
        raise RecordError(
            f"study {study.name!r} has no windows in {tree.runs}; "
            f"run it with `ddl study run {study.name}`"
        )
    return "\n".join(lines)
