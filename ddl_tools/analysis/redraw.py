"""Rebuild the tables and figures of a tree of records: those of each study in a folder of its own.

No study can push another out of a figure: each is drawn by itself, ``figures/<study>/<question>``,
beside the paper's numbers where these answer the same. ``figures/paper/`` shows these alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from ddl_core.errors import DDLError, RecordError
from ddl_core.files import cannot_write, open_plain, refuse_links, shown
from ddl_core.spelling import choices
from ddl_tools.analysis import result_page
from ddl_tools.analysis.configurations import configuration_table
from ddl_tools.analysis.figures import QUESTIONS, all_reduce
from ddl_tools.analysis.metrics import WORLD_G_PER_KWH
from ddl_tools.analysis.paper import read_paper
from ddl_tools.analysis.plot.canvas import (
    add_caption,
    remove_figure,
    save_figure,
    save_numbers,
    title_of,
)
from ddl_tools.analysis.question import OF_NO_RUN, Tables
from ddl_tools.analysis.tables import (
    DAMAGED,
    UNKNOWN,
    WINDOW_COLUMNS,
    counts,
    empty_table,
    is_emulated,
    profiles_table,
    runs_table,
    windows_table,
    write_tables,
)
from ddl_tools.records.ledger import find_study, former_folders, listing_fault, study_folders
from ddl_tools.records.paths import NAME_RESULTS, Tree, existing
from ddl_tools.records.storage import unexpected, write_atomically
from ddl_tools.study import NAMES

PAPER = "paper"  # the folder of what only the paper states


@dataclass
class Redrawn:
    """Result of `redraw`.

    Each of `damaged` is a line on a record that is in no figure, or a figure that is not drawn
    because of one, and why.
    """

    files: list[Path] = field(default_factory=list)
    pages: list[Path] = field(default_factory=list)
    findings: list[tuple[str, str, list[str]]] = field(default_factory=list)  # by folder, question
    lines: list[str] = field(default_factory=list)  # one a study
    kept: list[str] = field(default_factory=list)  # why a page is not written
    reasons: list[str] = field(default_factory=list)  # why a figure is not drawn
    damaged: list[str] = field(default_factory=list)

    def summary(self, reasons: bool = False) -> list[str]:
        """Return lines for the terminal: one a study; `reasons`: also why a figure lacks."""
        return [*self.lines, *self.kept, *(self.reasons if reasons else [])]

    @contextmanager
    def drawing(self, name: str) -> Iterator[None]:
        """Name what a block draws, and go on, if values of its records end the block."""
        try:
            yield
        except DDLError:
            raise
        except Exception as error:
            self.damaged.append(
                f"{name} cannot be drawn: {unexpected(error)}. If `ddl study verify` finds no "
                "damage, please report it with the records"
            )

    def write(self, page: Path, text: str) -> None:
        """Write a page, unless a file of somebody else has its name."""
        if result_page.may_write(page):
            write_atomically(page, text)
            self.pages.append(page)
        else:
            self.kept.append(
                f"warning: {page} is no page of `ddl figures`, so it stays and no page is written; "
                "move it away"
            )


def redraw(
    tree: Tree,
    *,
    figures: Path,
    studies: Sequence[str] = (),
    carbon_g_per_kwh: float = WORLD_G_PER_KWH,
) -> Redrawn:
    """Rebuild the tables of the studies in `tree`, then their figures and those of the paper.

    A page beside them shows the figures of a study with their answers, and an index all pages.
    Points that are not enough for a figure become sentences, a table and a CSV file. A
    figure that would show nothing is not drawn, and its older files are removed; so are those of
    studies that are gone. Only figures that such a page shows are removed, and only such a page is
    replaced. A damaged record is named and left out. In the tables, energy becomes
    CO2e at `carbon_g_per_kwh`. `studies` are drawn alone; by default all are, and the paper's.
    `RecordError` if there is no such tree or study, something cannot be written, or a folder of
    tables or figures is a symbolic link. `DataError` if the paper's numbers are missing.
    """
    if not (existing(tree).runs.is_dir() or tree.probes.is_dir()):
        raise RecordError(f"{tree.root} holds no runs/; {NAME_RESULTS}")
    present = tree.studies()
    if unknown := [name for name in studies if name not in present]:
        raise RecordError(
            f"no runs of study {', '.join(map(repr, unknown))} in {tree.runs}; "
            f"{choices(unknown[0], present)}"
        )
    chosen = sorted(set(studies)) if studies else [*present, ""]
    folders = {name: figures / folder_of(name) for name in chosen}
    require_no_link(figures, tree.tables, tree.tables / "windows", *folders.values())
    done = Redrawn()
    done.kept += [
        f"warning: {shown(name)} in {tree.runs} is no study and is not drawn: {NAMES}"
        for name in tree.no_studies()
    ]
    try:
        result_page.notes(tree, "")
    except RecordError as error:
        done.damaged.append(str(error))
    for name in tqdm(chosen, desc="studies", disable=None, leave=False):
        if name and (fault := listing_fault(name, tree)):
            done.damaged.append(fault)
            continue
        with done.drawing(name or PAPER):
            _draw_study(tree, name, folders[name], carbon_g_per_kwh, done)
    if not studies:
        for folder in {*figures.glob("*/")} - {*folders.values()}:
            if not folder.is_symlink():
                _remove_others(folder, set())
        done.write(figures / result_page.PAGE, result_page.index(done.findings))
        done.damaged += all_reduce.damaged(tree)
        with done.drawing(all_reduce.NAME):
            done.files += redraw_probes(tree, figures=figures)
    return done


def require_no_link(*folders: Path) -> None:
    """Refuse folders that are links: whoever made the records would choose what is replaced."""
    for folder in folders:
        try:
            refuse_links(folder)
        except OSError as error:
            raise cannot_write(folder, error) from None


def folder_of(study: str) -> str:
    """Return the folder of a study: one called paper must not lie with the paper's."""
    return f"{PAPER}+" if study == PAPER else study or PAPER


def pictures(redrawn: Redrawn, study: str) -> list[Path]:
    """Return the PNG of each figure of a study."""
    own = [path for path in redrawn.files if path.parent.name == folder_of(study)]
    return [path for path in own if path.suffix == ".png"]


def _draw_study(tree: Tree, study: str, folder: Path, carbon: float, done: Redrawn) -> None:
    """Write the tables and figures of a study; of none, those of what the paper states."""
    if study and not study_folders(study, tree):
        done.lines.append(f"{folder.name} (no run of the study as it is now): IN NO FIGURE")
        _remove_others(folder, set())
        return
    tables = tables_of(tree, study, *(write_tables(tree, study, carbon) if study else ()))
    done.damaged += [
        f"{tree.study(study) / row['run_id']}: {row['damage']}"
        for row in tables.runs[tables.runs["status"].isin((DAMAGED, UNKNOWN))].to_dict("records")
    ]
    notes = _not_drawn(tables.runs, len(former_folders(study, tree)) if study else 0)
    sections: dict[str, Any] = {}
    findings: list[str] = []
    there = result_page.figures_of(folder / result_page.PAGE)
    for name, question in QUESTIONS.items():
        if study and question.needs == OF_NO_RUN:
            continue
        with done.drawing(f"{study or PAPER}/{name}"):
            points = question.points(tables)
            if question.answered_by(points, of_runs=bool(study)):
                figure, stem = question.figure(points, tables), folder / name
                if figure:
                    add_caption(figure, notes)
                section = result_page.section(name, points, figure, folder, notes)
                finding = title_of(figure) if figure else question.title(points)
                known = name in there
                if figure:
                    done.files += save_figure(figure, points, stem, known=known)
                else:
                    if known:
                        remove_figure(stem)
                    done.files.append(save_numbers(points, stem, known=known))
                sections[name] = section
                findings += [finding, *result_page.confirmed(points)]
            elif study:
                done.reasons.append(f"  nothing to show in {study}/{name}: needs {question.needs}")
    _remove_others(folder, set(sections))
    if sections:
        title, about = result_page.head(tree, study, tables, folder)
        page = result_page.page(study, title, about, sections.values())
        done.write(folder / result_page.PAGE, page)
        done.findings.append((folder.name, title, findings))
    if study:
        names = ", ".join(sections) or "IN NO FIGURE"
        done.lines.append(f"{folder.name} ({counts(tables.runs)}): {names}")


def tables_of(
    tree: Tree,
    study: str = "",
    runs: pd.DataFrame | None = None,
    windows: pd.DataFrame | None = None,
) -> Tables:
    """Return what the figures of a study need, from its runs and windows; of none, the paper's.

    Also the runs of a second measurement, if there is one; beside the paper's, emulated runs.
    """
    again, second = tree.second(), None
    if study and study in again.studies():
        found = runs_table(again, studies=[study]), windows_table(again, [study])
        second = tables_of(again, study, *found)
    runs = empty_table() if runs is None else runs
    windows = empty_table(WINDOW_COLUMNS) if windows is None else windows
    return Tables(
        runs=runs,
        configurations=configuration_table(runs, windows),
        paper=read_paper(),
        windows=windows,
        profiles=profiles_table(tree, [study] if study else []),
        study=find_study(study, tree) if study else None,
        second=second,
        emulated=None if study else _emulated(tree),
    )


def _emulated(tree: Tree) -> pd.DataFrame:
    """Return the runs of the studies on emulated nodes."""
    names = [
        name
        for name in tree.studies()
        if not listing_fault(name, tree)
        and (study := find_study(name, tree))
        and study.base.get("emulated")
    ]
    runs = runs_table(tree, studies=names) if names else empty_table()
    return runs[is_emulated(runs)]


def _not_drawn(runs: pd.DataFrame, strays: int) -> list[str]:
    """Return a sentence on the runs that figures of measured ones leave out.

    `strays` are those that the study as it is now does not plan.
    """
    kinds = {
        "damaged (ddl study verify)": int((runs["status"] == DAMAGED).sum()),
        "of plug-ins that are not installed here": int((runs["status"] == UNKNOWN).sum()),
        "not planned any more": strays,
    }
    texts = [f"{number} {kind}" for kind, number in kinds.items() if number]
    if is_emulated(runs).any() and not is_emulated(runs).all():
        texts.append(f"{int(is_emulated(runs).sum())} emulated")
    return [f"Runs not drawn: {', '.join(texts)}."] if texts else []


def _remove_others(folder: Path, kept: set[str]) -> None:
    """Remove the figures of our page of a folder but those to be kept.

    If none is, also the page, and the folder if nothing is left.
    """
    for name in result_page.figures_of(folder / result_page.PAGE) - kept:
        remove_figure(folder / name)
    if not kept:
        result_page.remove_page(folder / result_page.PAGE)
        with suppress(OSError):  # it holds something, or is not there
            folder.rmdir()


def redraw_probes(tree: Tree, *, figures: Path) -> list[Path]:
    """Draw what `ddl doctor` measured between ranks, no study's; nothing where it never did.

    `RecordError` if something cannot be written, or `figures` is a symbolic link.
    """
    require_no_link(figures)
    stem, points = figures / all_reduce.NAME, all_reduce.points(tree)
    if points.empty:
        table = stem.with_suffix(".csv")
        own = f"{all_reduce.COLUMNS[0]},".encode()  # no page shows this figure
        if table.is_file():
            with open_plain(table) as file:
                ours = file.read(len(own)) == own
            if ours:
                remove_figure(stem)
        return []
    return save_figure(all_reduce.draw(points), points, stem)
