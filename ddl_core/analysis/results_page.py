"""All published figures on one page, which a code-hosting site shows: ``figures/README.md``."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from ddl_core.analysis.questions import QUESTIONS
from ddl_core.analysis.redraw import PAPER, notes
from ddl_core.analysis.tables import counts, is_emulated, read_table
from ddl_core.records.ledger import find_study
from ddl_core.records.paths import Tree
from ddl_core.records.storage import write_atomically

NAME = "README.md"
_HEAD = """\
# Results

<!-- written by `ddl figures` from data/, not by hand -->

Every published study: its question, what it was measured on, its figures. Each figure says below
itself how often, how sure and on which commit; its numbers and a version in vectors lie beside it.
`make report` executes the notebooks that show them, as a folder of HTML;
what follows for the paper: [statements](../docs/results/statements.md).
"""


def write(tree: Tree, figures: Path) -> None:
    """Write the page beside the figures.

    Raises
    ------
    RecordError
        If it cannot be written.
    """
    write_atomically(figures / NAME, page(tree, figures))


def page(tree: Tree, figures: Path) -> str:
    """Return the page of all studies of a tree and of the paper, in Markdown.

    Parameters
    ----------
    tree
        The records, with their tables.
    figures
        Where the figures lie, and the page will.
    """
    studies = [part for name in tree.studies() for part in _study(tree, figures, name)]
    paper = "## The paper's statements, Amdahl's law and advice"
    return "\n\n".join([_HEAD.rstrip(), *studies, paper, *_shown(figures / PAPER)]) + "\n"


def _study(tree: Tree, figures: Path, name: str) -> Iterator[str]:
    runs, told = read_table(tree.tables / f"{name}.csv"), find_study(name, tree)
    yield f"## {told.question if told else name}"
    table = f"[{counts(runs)}](../{tree.tables.relative_to(tree.root.parent)}/{name}.csv)"
    made = f"Study `{name}`, {table}, on {_machines(runs)}; code {_commits(runs)}."
    yield " ".join([made + _emulated(runs), *notes(tree, name)])
    yield from _shown(figures / name)


def _emulated(runs: pd.DataFrame) -> str:
    if not is_emulated(runs).any():
        return ""
    unfaithful = int(runs["unfaithful"].notna().sum())
    drawn = f"; {unfaithful} runs were unfaithful and are not drawn" if unfaithful else ""
    return f" Emulated, not measured on a cluster ([how](../docs/emulation.md)){drawn}."


def _machines(runs: pd.DataFrame) -> str:
    known = runs[["machine", "cpu_cores", "accelerator"]].drop_duplicates().dropna(how="all")
    names = [
        f"{row['machine']} ({row['cpu_cores']} cores)"
        if pd.isna(row["accelerator"])
        else str(row["accelerator"])
        for row in known.to_dict("records")
    ]
    return ", ".join(names) or "an unknown machine"


def _commits(runs: pd.DataFrame) -> str:
    return ", ".join(f"`{one[:8]}`" for one in sorted(runs["git_commit"].dropna().unique()))


def _shown(folder: Path) -> Iterator[str]:
    for name in QUESTIONS:
        if (folder / f"{name}.png").exists():
            place = f"{folder.name}/{name}"
            yield f"![{name}]({place}.png)\n\n[numbers]({place}.csv), [vectors]({place}.svg)"
