"""Throughput of every arm: a row each, every repeat a dot."""

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddl_core.analysis import turns
from ddl_core.analysis.arms import ARM, ARM_TYPES, KEYS, ORIGIN_TYPES, made_runs
from ddl_core.analysis.figures.over_workers import stack, with_model
from ddl_core.analysis.plot import captions, marks, style
from ddl_core.analysis.plot.canvas import styled
from ddl_core.analysis.plot.rows import interval, row_frame
from ddl_core.analysis.plot.scales import three_digits
from ddl_core.analysis.turns import Turns

REPEATS = {
    "panel": "string",
    **ARM_TYPES,
    "local_batch_size": "Int64",
    "world_size": "Int64",
    "repeat": "Int64",
    "run_id": "string",
    "lost": "boolean",
    "value": "float64",
    "n": "Int64",
    "windows": "Int64",
    "failed": "Int64",
    "mean": "float64",
    "low": "float64",
    "high": "float64",
    **ORIGIN_TYPES,
}

_SPREAD = 0.16  # of a row
BAND: dict[str, Any] = {"linewidth": 6, "alpha": 0.35, "solid_capstyle": "butt"}
MEAN: dict[str, Any] = {"markersize": 12, "markeredgewidth": 1.8}


def points(
    runs: pd.DataFrame, arms: pd.DataFrame, windows: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return one row per run that was made, with the mean and interval of its arm beside it.

    The value of a run whose windows took turns is their mean, as that of its arm is.
    """
    summary = arms.rename(columns={"value": "mean"})
    summary = summary[[*KEYS, "n", "windows", "failed", "mean", "low", "high"]]
    table = made_runs(runs).merge(summary, on=KEYS)
    taken = Turns(windows)
    table["value"] = [
        turns.middle(taken.of(study, [run_id]), [value]).ratio if value > 0 else value
        for study, run_id, value in zip(
            table["study"], table["run_id"], table["value"], strict=True
        )
    ]
    table["panel"] = with_model(table)
    order = [
        "panel",
        "library",
        "strategy",
        "loader",
        "data_format",
        "world_size",
        "repeat",
        "run_id",
    ]
    return stack([table], REPEATS).sort_values(order, ignore_index=True)


@styled
def draw(repeats: pd.DataFrame) -> Figure:
    """Return every run's throughput, a row for each strategy, loader, format and world size.

    A panel of one arm compares nothing: such are drawn only if there are no others.
    """
    arms = repeats.drop_duplicates(["panel", "hardware", *ARM, "world_size"])
    number = arms["panel"].value_counts()
    alone = number.index[number == 1] if (number > 1).any() else []
    repeats = style.with_framework(repeats[~repeats["panel"].isin(alone)])
    looks = style.strategy_looks(repeats["framework"])
    elsewhere = [f"Settings of one arm alone, in the CSV and in `comparison`: {len(alone)}."]
    figure, panels = row_frame(
        "Which strategy and loader trains fastest, and how sure is that?",
        repeats,
        _legend(looks),
        [*captions.runs(repeats.assign(failed=repeats["lost"])), *elsewhere[: len(alone)]],
        _texts,
        lines=1,
    )
    for ax, table in panels:
        draw_runs(ax, table, looks)
        ax.set_xlim(left=0)
    return figure


def draw_runs(ax: Axes, table: pd.DataFrame, looks: style.Looks) -> None:
    """Draw value of every run, and mean, low and high of its arm, in the rows of `row_frame`."""
    places = table.groupby("row")["row"]
    # Repeats of one arm a little above each other, so that none hides another.
    middle = (places.transform("size") - 1) / 2
    offset = (places.cumcount() - middle) / middle.clip(lower=0.5)
    arms = table.drop_duplicates("row").assign(value=table["mean"])
    marks.points(ax, arms, looks, BAND, markers="|", **MEAN)
    spread = table.assign(row=table["row"] + _SPREAD * offset)
    sns.scatterplot(spread, x="value", y="row", s=24, linewidth=0, zorder=3, ax=ax,
                    **marks.told_apart("framework", looks))  # fmt: skip


def _texts(arm: pd.DataFrame) -> list[str]:
    first, lost = arm.iloc[0], int(arm["lost"].sum())
    text = f"{three_digits(first['mean'])}{interval(first)}  " if first["n"] else ""
    taken = f", {first['windows']} windows" if first["n"] and first["windows"] else ""
    return [f"{text}n = {first['n']}{taken}" + (f", {lost} lost" if lost else "")]


def _legend(looks: style.Looks) -> list[Line2D]:
    dots = marks.handles(style.strategies_named(looks), ": one run", markersize=4)
    middle = {"geometric mean": MEAN | {"marker": "|"}}
    whole = {"95 % interval": BAND | {"linestyle": "solid"}}
    return [*dots, *marks.handles(middle | whole, color=style.UNNAMED_COLOUR)]
