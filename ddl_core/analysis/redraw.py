"""Rebuild all tables and figures of a tree of records."""

from pathlib import Path

import pandas as pd

from ddl_core.analysis.arms import arm_table
from ddl_core.analysis.figures import all_reduce, time_shares
from ddl_core.analysis.metrics import WORLD_G_PER_KWH
from ddl_core.analysis.paper import read_paper
from ddl_core.analysis.plot.canvas import save_figure
from ddl_core.analysis.questions import QUESTIONS
from ddl_core.analysis.tables import (
    empty_table,
    profiles_table,
    read_table,
    studies_with_runs,
    write_table,
)
from ddl_core.records.paths import Tree


def redraw(tree: Tree, *, figures: Path, carbon_g_per_kwh: float = WORLD_G_PER_KWH) -> list[Path]:
    """Rebuild the table of every study in `tree`, then every figure; return the figures' files.

    The figures are drawn from the tables as written, so that a table is all a figure needs. Without
    runs they show what the paper states. In the tables, energy becomes CO2e at `carbon_g_per_kwh`.

    Raises
    ------
    RecordError
        If a record cannot be read, or something cannot be written.
    DataError
        If the paper's numbers are missing.
    """
    tables = [
        read_table(write_table(tree, study, carbon_g_per_kwh)) for study in studies_with_runs(tree)
    ]
    runs = pd.concat([empty_table(), *tables], ignore_index=True)
    arms, paper = arm_table(runs), read_paper()
    written: list[Path] = []
    for name, question in QUESTIONS.items():
        points = question.points(runs, arms, paper)
        written += save_figure(question.draw(points), points, figures / name)
    written += _redraw_profiles(tree, runs, figures)
    return written + redraw_probes(tree, figures=figures)


def _redraw_profiles(tree: Tree, runs: pd.DataFrame, figures: Path) -> list[Path]:
    """Draw the profiles of `runs`; nothing where none was profiled."""
    profiles = profiles_table(tree)
    if profiles.empty:
        return []
    points = time_shares.points(profiles, runs)
    return save_figure(time_shares.draw(points), points, figures / time_shares.NAME)


def redraw_probes(tree: Tree, *, figures: Path) -> list[Path]:
    """Draw what `ddl doctor` measured between ranks; nothing where it never did.

    Raises
    ------
    RecordError
        If a record cannot be read, or something cannot be written.
    """
    table = all_reduce.points(tree)
    if table.empty:
        return []
    return save_figure(all_reduce.draw(table), table, figures / all_reduce.NAME)


def pictures(drawn: list[Path], study: str) -> list[Path]:
    """Return the PNG of each figure in `drawn`, as `redraw` returns it, with runs of `study`."""
    plotted = [path for path in drawn if path.suffix == ".csv"]
    return [
        path.with_suffix(".png")
        for path in plotted
        if study in set(pd.read_csv(path).get("study", ()))
    ]
