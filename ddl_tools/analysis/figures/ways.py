"""Looks of ways to learn: an optimiser with its schedule; and of runs that diverged."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from ddl_tools.analysis.plot import style
from ddl_tools.analysis.plot.canvas import handles

_CROSS: dict[str, Any] = {
    "color": "#666666",
    "linestyle": "none",
    "marker": "x",
    "markersize": 8,
    "markeredgewidth": 1.8,
    "zorder": 5,
}


def way_looks(points: pd.DataFrame) -> style.Looks:
    """Return how each label looks, in the order of the legend: by optimiser and schedule.

    Several labels of one of these differ in their marks.
    """
    ways = points[["optimizer", "schedule", "label"]].drop_duplicates()
    schedules = style.schedules(ways["schedule"])
    optimizers = style.optimizers(ways["optimizer"])
    ways = ways.sort_values(
        ["optimizer", "schedule"],
        key=lambda names: names.map([*optimizers, *schedules].index),
        kind="stable",
    )
    ways["number"] = ways.groupby(["optimizer", "schedule"]).cumcount()
    looks: style.Looks = {}
    for optimizer, schedule, label, number in ways.itertuples(index=False):
        looks[label] = style.way_look(optimizer, schedule, schedules)
        if number:
            for part, spare in (("marker", style.SPARE_MARKERS), ("linestyle", style.SPARE_LINES)):
                looks[label][part] = spare[(number - 1) % len(spare)]
    return looks


def accuracy_axis(ax: Axes) -> None:
    """Let y be a share in percent."""
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_ylabel("top-1 accuracy")


def draw_crosses(ax: Axes, table: pd.DataFrame, x: str, y: str, looks: style.Looks) -> None:
    """Draw a cross in the colour of its label for each row: runs that diverged."""
    for label, part in table.groupby("label"):
        ax.plot(part[x], part[y], **_CROSS | {"color": looks[str(label)]["color"]})


def crosses(table: pd.DataFrame) -> list[Line2D]:
    """Return what the legend says of crosses, nothing without any."""
    diverged = table["diverged"].fillna(0).astype(int).sum()
    return handles({"diverged": _CROSS}) if diverged else []
