"""Rebuild all tables and figures of a tree of records."""

from pathlib import Path

import pandas as pd

from ddl_core.analysis.arms import arm_table
from ddl_core.analysis.figures import all_reduce, time_shares
from ddl_core.analysis.metrics import WORLD_G_PER_KWH
from ddl_core.analysis.paper import read_paper
from ddl_core.analysis.plot.canvas import remove_figure, save_figure
from ddl_core.analysis.questions import QUESTIONS, Draw
from ddl_core.analysis.tables import (
    empty_table,
    empty_windows,
    profiles_table,
    read_table,
    read_windows,
    studies_with_runs,
    windows_path,
    write_table,
)
from ddl_core.records.paths import Tree


def redraw(tree: Tree, *, figures: Path, carbon_g_per_kwh: float = WORLD_G_PER_KWH) -> list[Path]:
    """Rebuild the table of every study in `tree`, then every figure; return the figures' files.

    The figures are drawn from the tables as written, so that a table is all a figure needs. Without
    runs they show what the paper states. A figure that would show nothing at all is not drawn, and
    its files from before are removed: see `not_drawn`. In the tables, energy becomes CO2e at
    `carbon_g_per_kwh`.

    Raises
    ------
    RecordError
        If a record cannot be read, or something cannot be written.
    DataError
        If the paper's numbers are missing.
    """
    tables = [write_table(tree, study, carbon_g_per_kwh) for study in studies_with_runs(tree)]
    runs = pd.concat([empty_table(), *map(read_table, tables)], ignore_index=True)
    measured = [read_windows(windows_path(table)) for table in tables]
    windows = pd.concat([empty_windows(), *measured], ignore_index=True)
    arms, paper = arm_table(runs, windows), read_paper()
    written: list[Path] = []
    for name, question in QUESTIONS.items():
        points = question.points(runs, arms, paper, windows)
        written += _draw(question.draw, points, figures / name)
    written += _redraw_profiles(tree, runs, figures)
    return written + redraw_probes(tree, figures=figures)


def _redraw_profiles(tree: Tree, runs: pd.DataFrame, figures: Path) -> list[Path]:
    """Draw the profiles of `runs`; nothing where none was profiled."""
    points = time_shares.points(profiles_table(tree), runs)
    return _draw(time_shares.draw, points, figures / time_shares.NAME)


def redraw_probes(tree: Tree, *, figures: Path) -> list[Path]:
    """Draw what `ddl doctor` measured between ranks; nothing where it never did.

    Raises
    ------
    RecordError
        If a record cannot be read, or something cannot be written.
    """
    return _draw(all_reduce.draw, all_reduce.points(tree), figures / all_reduce.NAME)


def _draw(draw: Draw, points: pd.DataFrame, stem: Path) -> list[Path]:
    """Draw `points` into files, or remove these where there is nothing to see."""
    if shows_something(points):
        return save_figure(draw(points), points, stem)
    remove_figure(stem)
    return []


def shows_something(points: pd.DataFrame) -> bool:
    """Say whether a figure of `points` has anything in it: runs that were lost are only counted."""
    return bool(points["value"].notna().any()) if "value" in points else not points.empty


def not_drawn(drawn: list[Path]) -> dict[str, str]:
    """Return each figure that is not in `drawn`, as `redraw` returns it, and what it needs."""
    needs = {name: question.needs for name, question in QUESTIONS.items()}
    needs |= {time_shares.NAME: "profiled runs", all_reduce.NAME: "a probe by ddl doctor"}
    there = {path.stem for path in drawn}
    return {name: need for name, need in needs.items() if name not in there}


def pictures(drawn: list[Path], study: str) -> list[Path]:
    """Return the PNG of each figure in `drawn`, as `redraw` returns it, with runs of `study`."""
    plotted = [path for path in drawn if path.suffix == ".csv"]
    return [
        path.with_suffix(".png")
        for path in plotted
        if study in set(pd.read_csv(path).get("study", ()))
    ]
