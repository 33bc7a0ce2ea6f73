"""What each figure shows, as a table: the figure is drawn from it, and it is saved beside it."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ddl_core.analysis import paper as published
from ddl_core.analysis.arms import KEYS, made_runs
from ddl_core.analysis.paper import Paper, covers
from ddl_core.analysis.plot.style import LOADER_NAMES, MODEL_NAMES

SEPARATOR = " · "  # in a panel's name, between what it shows and where that was measured

POINTS = {
    "panel": "string",
    "source": "string",
    "study": "string",
    "strategy": "string",
    "loader": "string",
    "data_format": "string",
    "model": "string",
    "local_batch_size": "Int64",
    "world_size_min": "Int64",
    "world_size": "Int64",
    "base_world_size": "Int64",
    "n": "Int64",
    "failed": "Int64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "bound": "string",
    "approx": "string",
    "statement": "string",
    "printed": "string",
    "place": "string",
    "contradiction": "string",
    "hardware": "string",
    "on_cpu": "boolean",
    "commit": "string",
}
REPEATS = {
    "panel": "string",
    "study": "string",
    "strategy": "string",
    "loader": "string",
    "data_format": "string",
    "model": "string",
    "local_batch_size": "Int64",
    "world_size": "Int64",
    "repeat": "Int64",
    "run_id": "string",
    "lost": "boolean",
    "value": "float64",
    "n": "Int64",
    "failed": "Int64",
    "median": "float64",
    "low": "float64",
    "high": "float64",
    "hardware": "string",
    "on_cpu": "boolean",
    "commit": "string",
}


def throughput(arms: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return throughput (images/s) over workers: a panel per setting, model and loader.

    Formats of one loader share its panel. A setting measured at one number of workers says nothing
    here and is left out where another was measured at more.
    The paper's panel comes last and is its own, because the hardware is another.
    """
    ours = _measured(_varied(arms), ["value", "low", "high"])
    loaders = list(LOADER_NAMES)
    ours["order"] = ours["loader"].map(loaders.index)
    ours = ours.sort_values(["setting", "model", "order"], kind="stable")
    ours["panel"] = ours["loader"].map(LOADER_NAMES) + SEPARATOR + _with_model(ours)
    theirs = published.throughput_points(paper).assign(panel=published.SYSTEM)
    return _stack([ours, theirs], POINTS)


def efficiency(
    arms: pd.DataFrame,
    paper: Paper,
    loaders: Sequence[Sequence[str]],
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
    compare: str | None = None,
) -> pd.DataFrame:
    """Return parallel efficiency over workers for some arms, the paper's statements beside ours.

    Parameters
    ----------
    arms
        An arm table.
    paper
        The paper's numbers.
    loaders
        Groups of loaders; each group gets its own panel.
    models, strategies
        What to keep; empty keeps all. Statements that name no strategy are always kept.
    compare
        Column that must have two or more values in a panel for ours to be shown in it.

    Returns
    -------
    DataFrame
        `POINTS`. Every setting with an arm at two or more world sizes has its own panels, see
        `_panels`. An arm measured at its base only is left out: it is 1 by definition.
    """
    ours = _measured(_scaling(arms), ["efficiency", "efficiency_low", "efficiency_high"])
    theirs = published.efficiency_points(paper)
    ours, theirs = (
        part[_among(part["model"], models) & _among(part["strategy"], strategies)]
        for part in (ours, theirs)
    )
    if compare:
        places = [ours["panel"], ours["loader"], ours["data_format"]]
        ours = ours[ours.groupby(places)[compare].transform("nunique") > 1]
    panels = _panels(ours, theirs, loaders)
    parts = [pd.concat(part) for part in zip(*panels.values(), strict=True)]
    return _stack(parts, POINTS, list(panels))


def repeats(runs: pd.DataFrame, arms: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run that was made, with the median and interval of its arm beside it."""
    summary = arms.rename(columns={"value": "median"})
    summary = summary[[*KEYS, "n", "failed", "median", "low", "high"]]
    table = made_runs(runs).merge(summary, on=KEYS)
    table["panel"] = _with_model(table)
    order = ["panel", "strategy", "loader", "data_format", "world_size", "repeat", "run_id"]
    return _stack([table], REPEATS).sort_values(order, ignore_index=True)


def _measured(table: pd.DataFrame, values: Sequence[str]) -> pd.DataFrame:
    """Return the measured arms with `values` as value, low and high."""
    chosen = {new: table[old] for new, old in zip(("value", "low", "high"), values, strict=True)}
    return table.assign(
        **chosen,
        source="measured",
        bound="value",
        world_size_min=table["world_size"],
        panel=table["setting"],
    )


def _varied(table: pd.DataFrame) -> pd.DataFrame:
    """Return the settings measured at two or more world sizes; all of them if there are none."""
    reached = table["world_size"].where(table["n"] > 0)
    varied = reached.groupby(table["setting"]).transform("nunique") > 1
    return table[varied] if varied.any() else table


def _scaling(table: pd.DataFrame) -> pd.DataFrame:
    """Return the arms that were measured at two or more world sizes."""
    reached = table["world_size"].where(table["n"] > 0)
    keys = [table[name] for name in KEYS if name != "world_size"]
    return table[reached.groupby(keys).transform("nunique") > 1]


def _panels(
    ours: pd.DataFrame, theirs: pd.DataFrame, loaders: Sequence[Sequence[str]]
) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Return the panels of each group, each with our rows and the paper's.

    The paper's statements stand in the panels of settings that go beyond its base, else in a panel
    of their own: no number of workers is then common to both.
    """
    panels = {}
    for group in loaders:
        label = ", ".join(LOADER_NAMES[name] for name in group) if len(loaders) > 1 else ""
        here = ours[ours["loader"].isin(group)]
        covered = [any(covers(stated, name) for name in group) for stated in theirs["loader"]]
        stated = theirs[np.array(covered, dtype=bool)]
        most = here[here["n"] > 0].groupby("panel")["world_size"].max()
        for setting in most.index:
            large = most[setting] > published.BASE_WORLD_SIZE
            rows = here[here["panel"] == setting], stated if large else stated.iloc[:0]
            panels[_panel_name(label, setting)] = rows
        if not (most > published.BASE_WORLD_SIZE).any():
            panels[_panel_name(label, published.SYSTEM)] = here.iloc[:0], stated
    return {
        name: (mine.assign(panel=name), others.assign(panel=name))
        for name, (mine, others) in panels.items()
    }


def _panel_name(label: str, setting: str) -> str:
    return SEPARATOR.join(part for part in (label, setting) if part)


def _among(column: pd.Series, wanted: Sequence[str]) -> pd.Series:
    return column.isin(wanted) | column.isna() if wanted else column.notna() | column.isna()


def _with_model(table: pd.DataFrame) -> pd.Series:
    return table["setting"].astype("string") + ", " + table["model"].map(MODEL_NAMES)


def _stack(
    parts: Sequence[pd.DataFrame], types: dict[str, str], panels: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the parts as one table of these columns, panel by panel: as given, or as they come."""
    table = pd.concat([part.reindex(columns=list(types)).astype(types) for part in parts])
    order = {name: number for number, name in enumerate(panels or table["panel"].unique())}
    return table.sort_values(
        "panel", key=lambda panel: panel.map(order), kind="stable", ignore_index=True
    )
