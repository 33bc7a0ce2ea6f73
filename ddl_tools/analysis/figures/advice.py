"""Advice: time over node-hours with the Pareto front, and accuracy over global batch."""

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ddl_tools.analysis.plot import curves, style
from ddl_tools.analysis.plot.canvas import frame, styled
from ddl_tools.records.paths import PROJECT, Tree
from ddl_tools.scaling import render
from ddl_tools.scaling.advise import Advice, Machine, Request, advise
from ddl_tools.scaling.options import Limits

# The example of docs/advise.md: the paper's network on the paper's machine.
JUWELS = Machine("juwels_booster", "JUWELS Booster", 4)
EXAMPLE = Request(JUWELS, "resnet50", Limits(deadline=1.0, accuracy=75.0))

# The darker a mark, the more certain it is that the limits are met.
_ALPHAS = {"met": 1.0, "uncertain": 0.45, "violated": 0.15}
_TOLD = {"met": "meets all limits", "uncertain": "may meet them", "violated": "violates one"}
_FRONT: dict[str, Any] = {"color": "#999999", "linewidth": 0.9, "zorder": 1}
_LIMIT: dict[str, Any] = {"color": "#B00000", "linewidth": 1.0, "linestyle": (0, (4, 2))}
_ADVISED: dict[str, Any] = {
    "marker": "o", "linestyle": "none", "markersize": 13, "markerfacecolor": "none",
    "markeredgecolor": "#000000", "markeredgewidth": 1.0,
}  # fmt: skip
_HEIGHT = 2.9  # inches
_ROOM = 0.12  # of the axis, for the numbers beside the bands
_MOST_BATCHES = 5  # that have a tick


def points() -> pd.DataFrame:
    """Return the options of the example, from the paper alone.

    Raises
    ------
    DataError
        If a table of the paper is missing.
    """
    return points_of(advise(EXAMPLE, Tree(PROJECT / "no records")))


def points_of(advice: Advice) -> pd.DataFrame:
    """Return the options of an answer; numbers have four digits."""
    table = pd.DataFrame(render.rows(advice))
    numbers = [name for name in table if re.match("hours|node_hours|accuracy|limit_", str(name))]
    return table.assign(**table[numbers].astype(float).map(lambda value: float(f"{value:.4g}")))


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return time over node-hours with the Pareto front, and accuracy by batch."""
    panels = ["time and cost"]
    if points["accuracy"].notna().any():
        panels.append("accuracy")
    figure, axes = frame(
        "Which configurations meet the limits, and at what cost?",
        panels,
        [_HEIGHT],
        _legend(points),
        _caption(points),
    )
    looks = style.strategy_looks(points["strategy"])
    _cost(axes[0], points, looks)
    if len(panels) > 1:
        _accuracy(axes[1], points)
    return figure


def _cost(ax: Axes, points: pd.DataFrame, looks: style.Looks) -> None:
    front = points[points["pareto"]].sort_values("hours")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.margins(x=_ROOM)
    ax.plot(front["node_hours"], front["hours"], **_FRONT)
    for row in points.itertuples():
        look = _look(row, looks)
        ax.plot([row.node_hours_low, row.node_hours_high], [row.hours_low, row.hours_high],
                color=look["color"], alpha=look["alpha"], linewidth=0.8)  # fmt: skip
        ax.plot(row.node_hours, row.hours, linestyle="none", **look)
    advised = points[points["advised"]]
    ax.plot(advised["node_hours"], advised["hours"], **_ADVISED)
    for value in points["limit_deadline"].dropna().unique():
        ax.axhline(value, **_LIMIT)
    for value in points["limit_node_hours"].dropna().unique():
        ax.axvline(value, **_LIMIT)
    for axis in (ax.xaxis, ax.yaxis):
        _ticks(axis)
    ax.set_xlabel("node-hours")
    ax.set_ylabel("time of training (h)")
    for row in points.sort_values("hours_low").drop_duplicates("world_size").itertuples():
        place = (row.node_hours_low, row.hours_low)
        ax.annotate(
            f"{row.world_size}",
            place,
            (-4, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=7,
        )


def _accuracy(ax: Axes, points: pd.DataFrame) -> None:
    known = points[points["accuracy"].notna()]
    one = known.drop_duplicates("global_batch_size").sort_values("global_batch_size")
    batches = one["global_batch_size"]
    curves.value_axis(ax, batches.iloc[:: -(-len(one) // _MOST_BATCHES)], "global batch (images)")
    ax.vlines(batches, one["accuracy_low"], one["accuracy_high"], color="#444444", linewidth=0.8)
    ax.plot(batches, one["accuracy"], marker="o", linestyle="none", color="#444444")
    advised = known[known["advised"]]
    ax.plot(advised["global_batch_size"], advised["accuracy"], **_ADVISED)
    for value in points["limit_accuracy"].dropna().unique():
        ax.axhline(value, **_LIMIT)
    ax.set_ylabel("top-1 accuracy (%)")


def _look(row: Any, looks: style.Looks) -> dict[str, Any]:
    return {
        **looks[row.strategy],
        "fillstyle": style.LOADER_FILLS.get(row.loader, "full"),
        "markerfacecoloralt": "white",
        "alpha": _ALPHAS[row.limits],
        "zorder": 3,
    }


def _ticks(axis: Axis) -> None:
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _legend(points: pd.DataFrame) -> Sequence[Artist]:
    arms = points.drop_duplicates(["strategy", "loader"])
    looks = style.strategy_looks(points["strategy"])
    found = [
        Line2D(
            [], [], linestyle="none",
            label=f"{style.strategy_name(row.strategy)}, {style.loader_name(row.loader)}",
            **_look(row, looks) | {"alpha": 1.0},
        )
        for row in arms.itertuples()
    ]  # fmt: skip
    grey: dict[str, Any] = {"marker": "o", "linestyle": "none", "color": "#000000"}
    found += [
        Line2D([], [], label=_TOLD[said], alpha=alpha, **grey)
        for said, alpha in _ALPHAS.items()
        if (points["limits"] == said).any()
    ]
    return [
        *found,
        Line2D([], [], label="advised", **_ADVISED | {"markersize": 9}),
        Line2D([], [], label="Pareto front", **_FRONT),
        Line2D([], [], label="limit", **_LIMIT),
    ]


def _caption(points: pd.DataFrame) -> list[str]:
    loaders = points["loader"].map(style.loader_name)
    sources = (loaders + ": " + points["sources"]).unique()
    return [
        f"{points['request'].iloc[0]}.",
        "Numbers: GPUs (ranks). Thin lines: stated bounds, or 90 % bands of a single run; time and "
        "node-hours move together. Training alone, without evaluation, checkpoints and start-up.",
        *(["Accuracy: of the best schedules; between two known batches, the range of both."]
          if points["accuracy"].notna().any() else []),
        f"Sources: {'; '.join(sources)}.",
    ]  # fmt: skip
