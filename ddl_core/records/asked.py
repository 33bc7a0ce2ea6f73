"""What a study asked, kept beside its runs: a file of its own, which no run needs.

Its figures can say it wherever the records go, also without the YAML that it was written in.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from ddl_core.errors import SpecError
from ddl_core.records.paths import STUDIES, Tree
from ddl_core.records.storage import write_atomically
from ddl_core.spec.run import RunSpec
from ddl_core.spec.study import Study


def keep(study: Study, tree: Tree) -> None:
    """Write ``study.json``, where it does not say the same already.

    Raises
    ------
    RecordError
        If it cannot be written.
    """
    if kept(study.name, tree) != study:
        write_atomically(tree.asked(study.name), study.model_dump_json(indent=1) + "\n")


def asked(name: str, tree: Tree) -> Study | None:
    """Return a study as it was planned, else as the project has it; None where nobody knows it."""
    return kept(name, tree) or _of_project(name)


def specs(study: Study, tree: Tree) -> list[RunSpec]:
    """Return the runs of a study: its grid, then what blocks needed beyond its repeats."""
    return [*study.expand(), *_further_references(study, tree.study(study.name))]


def _further_references(study: Study, folder: Path) -> Iterator[RunSpec]:
    """Yield the runs of the reference arm that blocks needed beyond the study's repeats."""
    if study.turns is None:
        return
    for beyond in map(study.reference, itertools.count(study.repeats)):
        if not (folder / beyond.run_id).is_dir():
            return
        yield beyond


def own_folders(name: str, tree: Tree) -> list[Path]:
    """Return the folders of the runs that a study has as it was planned last.

    All that are there where nobody kept what it asked, or where that cannot be planned here.
    """
    folders, study = tree.run_folders(name), kept(name, tree)
    try:
        own = {spec.run_id for spec in specs(study, tree)} if study else None
    except SpecError:  # it names what is not installed here
        own = None
    return folders if own is None else [one for one in folders if one.name in own]


def strays(name: str, tree: Tree) -> list[Path]:
    """Return the folders of the runs that a study had once, and has no more."""
    own = set(own_folders(name, tree))
    return [one for one in tree.run_folders(name) if one not in own]


def kept(name: str, tree: Tree) -> Study | None:
    """Return a study as it was planned; None where nobody kept it."""
    try:
        return Study.model_validate_json(tree.asked(name).read_bytes())
    except (OSError, ValidationError):
        return None  # of an older version, or damaged: planning the study writes it anew


def _of_project(name: str) -> Study | None:
    try:
        return Study.load(STUDIES / f"{name}.yaml")
    except SpecError:
        return None
