"""Rebuild the tables and figures of a tree of records: those of each study in a folder of its own.

No study can push another out of a figure: each is drawn by itself, ``figures/<study>/<question>``,
beside the paper's numbers where these answer the same. ``figures/paper/`` shows these alone.
Several studies are drawn together where somebody says so, in ``figures/<study>+<study>/``.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from tqdm import tqdm

from ddl_core.analysis.arms import arm_table
from ddl_core.analysis.figures import all_reduce
from ddl_core.analysis.metrics import WORLD_G_PER_KWH
from ddl_core.analysis.paper import read_paper
from ddl_core.analysis.plot.canvas import Page, Sheet, on_page, remove_figure, save_figure
from ddl_core.analysis.questions import OF_NO_RUN, QUESTIONS, Tables
from ddl_core.analysis.tables import (
    DAMAGED,
    UNKNOWN,
    counts,
    empty_table,
    empty_windows,
    is_emulated,
    profiles_table,
    read_table,
    read_windows,
    windows_path,
    write_table,
)
from ddl_core.errors import RecordError
from ddl_core.processes import die_with_parent
from ddl_core.records.damage import with_remedy
from ddl_core.records.ledger import find_study, former_folders
from ddl_core.records.paths import Tree

PAPER = "paper"  # the folder of what only the paper states
TOGETHER = "+"  # between the names of studies that are drawn together; in no study's name
MOST_PROCESSES = 8  # each takes 300 MB, and seconds to start:
FEW_FOLDERS = 3  # so many are drawn sooner without them

Names = tuple[str, ...]
"""The studies of a folder; none in that of the paper."""


@dataclass(frozen=True)
class Drawn:
    """What became of a figure; without `files` it has nothing to show."""

    stem: Path
    files: list[Path]
    left_out: tuple[str, ...] = ()
    removed: bool = False


@dataclass(frozen=True)
class Redrawn:
    """What `redraw` did. Each of `damaged` is a line on a record that is in no figure, and why."""

    drawn: list[Drawn]
    runs: dict[str, str]  # of each folder but the paper's, see `counts`
    damaged: list[str]

    @property
    def files(self) -> list[Path]:
        """All files that were written."""
        return [path for one in self.drawn for path in one.files]

    def told(self, reasons: bool = False) -> list[str]:
        """Return lines for the terminal: one for each study, and one for what was removed.

        With `reasons` also why a figure is not drawn, or something not in it.
        """
        lines = [line for folder in self.runs for line in self._folder(folder, reasons)]
        full = [one for one in self.drawn if one.left_out and reasons]
        lines += [f"{_name(one)}: {' '.join(one.left_out)}" for one in full]
        if gone := [_name(one) for one in self.drawn if one.removed]:
            lines.append(f"removed, nothing to show any more: {', '.join(gone)}")
        return lines

    def _folder(self, folder: str, reasons: bool) -> Iterator[str]:
        own = [one for one in self.drawn if one.stem.parent.name == folder]
        shown = [one.stem.name for one in own if one.files]
        yield f"{folder} ({self.runs[folder]}): {', '.join(shown) or 'IN NO FIGURE'}"
        for name in (one.stem.name for one in own if not one.files and reasons):
            if (need := QUESTIONS[name].needs) != OF_NO_RUN:
                yield f"  nothing to show in {name}: needs {need}"


def _name(one: Drawn) -> str:
    return f"{one.stem.parent.name}/{one.stem.name}"


def redraw(
    tree: Tree,
    *,
    figures: Path,
    studies: Sequence[str] = (),
    carbon_g_per_kwh: float = WORLD_G_PER_KWH,
) -> Redrawn:
    """Rebuild the tables of the studies in `tree`, then their figures and those of the paper.

    The figures are drawn from the tables as written, so that a table is all a figure needs. One
    that would show nothing is not drawn, and its files from before are removed; so are those of
    studies that are gone. A record that is damaged is named, not drawn, and disturbs no other.
    In the tables, energy becomes CO2e at `carbon_g_per_kwh`.

    Parameters
    ----------
    tree
        The records.
    figures
        Folder of the figures.
    studies
        Draw these alone, together if they are several, and leave all other files as they are. By
        default all: each by itself, and together those that were drawn together before.

    Raises
    ------
    RecordError
        If there is no such tree or study, or something cannot be written.
    DataError
        If the paper's numbers are missing.
    """
    if not (tree.runs.is_dir() or tree.probes.is_dir()):
        there = f"{tree.root} holds no runs/"
        missing = f"there is no folder of results {tree.root}"
        raise RecordError(
            f"{there if tree.root.is_dir() else missing}; name one that holds runs/, or measure "
            "something first: ddl study run laptop"
        )
    present = tree.studies()
    folders = _chosen(present, studies, tree) if studies else _all(present, figures)
    names = sorted({name for chosen in folders.values() for name in chosen})
    with _processes(len(folders)) as each:
        tables = _watched("tables", each(partial(_tabulate, tree, carbon_g_per_kwh), names), names)
        parts = dict(zip(folders, each(partial(_part, tree), folders.values()), strict=True))
        jobs = [
            _Job(part, name, figures / folder / name)
            for folder, part in parts.items()
            for name in QUESTIONS
        ]
        drawn = _watched("figures", each(_draw, jobs), jobs)
    damaged = [line for lines in tables for line in lines]
    if not studies:
        drawn += _removed(figures, list(folders))
        drawn += _probes(tree, figures, damaged)
    runs = {name: counts(part.tables.runs) for name, part in parts.items() if part.page.study}
    return Redrawn(drawn, runs, damaged)


def _watched(what: str, results: Iterable[Any], jobs: Sequence[object]) -> list[Any]:
    """Return all results, with a progress bar where standard error is a terminal."""
    return list(tqdm(results, desc=what, total=len(jobs), disable=None, leave=False))


def pictures(redrawn: Redrawn, study: str) -> list[Path]:
    """Return the PNG of each figure of a study."""
    own = [path for path in redrawn.files if path.parent.name == _folder((study,))]
    return [path for path in own if path.suffix == ".png"]


def _folder(names: Names) -> str:
    """Return the folder of some studies; a study called paper must not lie with the paper's."""
    return PAPER + TOGETHER if names == (PAPER,) else TOGETHER.join(names) or PAPER


def _chosen(present: list[str], studies: Sequence[str], tree: Tree) -> dict[str, Names]:
    if unknown := [name for name in studies if name not in present]:
        raise RecordError(
            f"no runs of study {', '.join(map(repr, unknown))} in {tree.runs}; choose from: "
            f"{', '.join(present) or 'none, there are no runs'}"
        )
    names = tuple(sorted(set(studies)))
    return {_folder(names): names}


def _all(present: list[str], figures: Path) -> dict[str, Names]:
    """Return the folders of each study, of the sets that were drawn before, and of the paper."""
    found = sorted(path.name for path in figures.iterdir()) if figures.is_dir() else []
    sets = [tuple(filter(None, name.split(TOGETHER))) for name in found if TOGETHER in name]
    kept = [names for names in sets if names and set(names) <= set(present)]
    return {_folder(names): names for names in [*((name,) for name in present), *kept, ()]}


@dataclass(frozen=True)
class _Part:
    """What the figures of a folder are drawn from."""

    tables: Tables
    page: Page


def _tabulate(tree: Tree, carbon_g_per_kwh: float, study: str) -> list[str]:
    """Write the tables of a study; return a line on each damaged record."""
    runs = read_table(write_table(tree, study, carbon_g_per_kwh))
    return [
        f"{tree.study(study) / row['run_id']}: {with_remedy(row['damage'])}"
        for row in runs[runs["status"].isin((DAMAGED, UNKNOWN))].to_dict("records")
    ]


def _part(tree: Tree, names: Names) -> _Part:
    """Read the tables of some studies together; without names, what the paper needs."""
    paths = [tree.tables / f"{name}.csv" for name in names]
    runs = pd.concat([empty_table(), *map(read_table, paths)], ignore_index=True)
    measured = [read_windows(windows_path(path)) for path in paths]
    windows = pd.concat([empty_windows(), *measured], ignore_index=True)
    study = find_study(names[0], tree) if len(names) == 1 else None
    tables = Tables(
        runs=runs,
        arms=arm_table(runs, windows),
        paper=read_paper(),
        windows=windows,
        profiles=profiles_table(tree, names),
        study=study,
    )
    others = sum(len(former_folders(name, tree)) for name in names)
    known = [note for name in names for note in notes(tree, name)]
    return _Part(tables, Page(TOGETHER.join(names), (*_not_drawn(runs, others), *known)))


def notes(tree: Tree, study: str) -> list[str]:
    """Return what readers of a study's figures must know of its runs, from the tree's notes."""
    if not tree.notes.exists():
        return []
    table = pd.read_csv(tree.notes, dtype="string")
    return list(table.loc[table["study"] == study, "note"])


def _not_drawn(runs: pd.DataFrame, others: int) -> tuple[str, ...]:
    """Return a sentence on each kind of runs that figures of measured ones leave out.

    `others` are those that the study as it is now does not plan.
    """
    unknown = int((runs["status"] == UNKNOWN).sum())
    damaged, emulated = int((runs["status"] == DAMAGED).sum()), int(is_emulated(runs).sum())
    records = f"{damaged} record{'s' if damaged > 1 else ''}"
    notes = [f"Damaged, not drawn: {records}, named by `ddl study verify`."] if damaged else []
    if unknown:
        notes.append(f"Not drawn: {unknown} of plug-ins that are not installed here.")
    if others:
        several = f"{others} run{'s' if others > 1 else ''}"
        notes.append(f"Not planned any more, not drawn: {several}, see `ddl study status`.")
    if emulated:
        several = f"{emulated} run{'s' if emulated > 1 else ''}"
        notes.append(f"Emulated, drawn in efficiency_emulated alone: {several}.")
    return tuple(notes)


@dataclass(frozen=True)
class _Job:
    """One figure to draw."""

    part: _Part
    name: str
    stem: Path


def _draw(job: _Job) -> Drawn:
    """Draw a figure into files, or remove these where there is nothing to see."""
    question = QUESTIONS[job.name]
    points = question.chosen(job.part.tables)
    if not _shows_something(points, question.answer, of_runs=bool(job.part.page.study)):
        return Drawn(job.stem, [], removed=remove_figure(job.stem))
    with on_page(job.part.page):
        figure = question.draw(points)
    return _saved(figure, points, job.stem)


def _saved(figure: Figure, points: pd.DataFrame, stem: Path) -> Drawn:
    left_out = figure.left_out if isinstance(figure, Sheet) else ()
    return Drawn(stem, save_figure(figure, points, stem), left_out)


def _shows_something(points: pd.DataFrame, answer: str, of_runs: bool) -> bool:
    """Say whether a figure has anything in it: in a study's folder a run; lost ones are counted."""
    if of_runs:
        points = points[points["study"].notna()] if "study" in points else points.iloc[:0]
    values = points.filter(items=[answer, "diverged_value"])
    return bool(values.notna().any(axis=None)) if answer in points else not points.empty


def redraw_probes(tree: Tree, *, figures: Path) -> list[Path]:
    """Draw what `ddl doctor` measured between ranks, no study's; nothing where it never did.

    Raises
    ------
    RecordError
        If a record cannot be read, or something cannot be written.
    """
    return _drawn_probes(tree, figures).files


def _drawn_probes(tree: Tree, figures: Path) -> Drawn:
    stem, points = figures / all_reduce.NAME, all_reduce.points(tree)
    if points.empty:
        return Drawn(stem, [], removed=remove_figure(stem))
    return _saved(all_reduce.draw(points), points, stem)


def _probes(tree: Tree, figures: Path, damaged: list[str]) -> list[Drawn]:
    """Draw the probes; one that is damaged joins the `damaged` and stops nothing else."""
    try:
        return [_drawn_probes(tree, figures)]
    except RecordError as error:
        damaged.append(f"{error}; remove the probe, or ask `ddl doctor` again")
        return []


def _removed(figures: Path, folders: list[str]) -> list[Drawn]:
    """Remove the figures of studies that are gone, and those that lay beside the folders once."""
    below = [path for path in figures.iterdir() if path.is_dir() and path.name not in folders]
    removed = []
    for folder in [figures, *sorted(below)]:
        stems = [folder / name for name in QUESTIONS]
        removed += [Drawn(stem, [], removed=True) for stem in stems if remove_figure(stem)]
    for folder in below:
        with suppress(OSError):  # it holds what somebody else put there
            folder.rmdir()
    return removed


Each = Callable[[Callable[..., Any], Iterable[Any]], Iterable[Any]]


@contextmanager
def _processes(folders: int) -> Iterator[Each]:
    """Give a `map` that works on all processors where there are some `folders` to fill."""
    number = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
    if number < 2 or folders <= FEW_FOLDERS:
        yield map
        return
    # Not forked: whoever calls may have threads, as a notebook's kernel does.
    with ProcessPoolExecutor(number, get_context("spawn"), _begin, (os.getpid(),)) as pool:
        yield pool.map


def _begin(parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
