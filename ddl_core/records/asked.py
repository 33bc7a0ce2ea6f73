"""What a study asked, kept beside its runs: a file of its own, which no run needs.

Its figures can say it wherever the records go, also without the YAML that it was written in.
"""

from pydantic import ValidationError

from ddl_core.errors import SpecError
from ddl_core.records.paths import STUDIES, Tree
from ddl_core.records.storage import write_atomically
from ddl_core.spec.study import Study


def keep(study: Study, tree: Tree) -> None:
    """Write ``study.json``, where it does not say the same already.

    Raises
    ------
    RecordError
        If it cannot be written.
    """
    if _kept(study.name, tree) != study:
        write_atomically(tree.asked(study.name), study.model_dump_json(indent=1) + "\n")


def asked(name: str, tree: Tree) -> Study | None:
    """Return a study as it was planned, else as the project has it; None where nobody knows it."""
    return _kept(name, tree) or _of_project(name)


def _kept(name: str, tree: Tree) -> Study | None:
    try:
        return Study.model_validate_json(tree.asked(name).read_bytes())
    except (OSError, ValidationError):
        return None  # of an older version, or damaged: planning the study writes it anew


def _of_project(name: str) -> Study | None:
    try:
        return Study.load(STUDIES / f"{name}.yaml")
    except SpecError:
        return None
