"""Advice: time over GPUs with the limits, and accuracy over global batch."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddl_tools.analysis.plot import curves, style
from ddl_tools.analysis.plot.canvas import frame, handles, styled
from ddl_tools.records.paths import PROJECT, Tree
from ddl_tools.scaling import render
from ddl_tools.scaling.advise import Advice, Machine, Request, advise
from ddl_tools.scaling.options import Limits

# The example of docs/how-to/choose-a-stack.md: the paper's network on the paper's machine.
JUWELS = Machine("juwels_booster", "JUWELS Booster", 4)
EXAMPLE = Request(JUWELS, "resnet50", Limits(deadline=1.0, accuracy=75.0))

_LIMIT: dict[str, Any] = {"color": "#B00000", "linewidth": 1.0, "linestyle": (0, (4, 2))}
_RING: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 13, "zorder": 6,
                         "markerfacecolor": "none", "markeredgecolor": "#000000"}  # fmt: skip
_MOST_BATCHES = 5  # that have a tick


def points() -> pd.DataFrame:
    """Return the options of the example, from the paper alone.

    `DataError` if a table of the paper is missing.
    """
    return points_of(advise(EXAMPLE, Tree(PROJECT / "no records")))


def points_of(advice: Advice) -> pd.DataFrame:
    """Return the options of an answer."""
    table = pd.DataFrame(render.rows(advice))
    may_lack = table.filter(regex="^(accuracy|limit_)")
    return table.assign(**may_lack.astype(float))


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return time over GPUs with the limits and the advised option, and accuracy by batch."""
    panels = ["time"]
    if points["accuracy"].notna().any():
        panels.append("accuracy")
    looks = _looks(points)
    figure, axes = frame(
        _advised(points),
        panels,
        [2.6],
        [
            *handles(looks, markersize=5),
            *handles({"advised": _RING}, markersize=9),
            *([Line2D([], [], label="limit", **_LIMIT)] if _has_limits(points) else []),
        ],
        [
            f"{points['request'].iloc[0]}.",
            "Bands: stated bounds, or the 90 % band of one run; training alone.",
            "Between two known batches, accuracy is the range of both."
            if len(panels) > 1
            else "The accuracy is unknown.",
        ],
    )
    _time(axes[0], points, looks)
    if len(panels) > 1:
        _accuracy(axes[1], points)
    return figure


def _advised(points: pd.DataFrame) -> str:
    """Return the advised option with its time and cost."""
    advised = points[points["advised"]]
    if advised.empty:
        return "No configuration meets the limits"
    row, finding = advised.iloc[0], "takes "
    if _has_limits(points):
        costs = points.loc[points["limits"] == "met", "node_hours"]
        cheapest = pd.notna(row["limit_deadline"]) and row["node_hours"] <= (1 + 1e-9) * costs.min()
        best = " at the least cost" if cheapest else ""
        finding = f"meets the limits{best}: " if row["limits"] == "met" else "may meet the limits: "
    return (
        f"{_name(row)} on {row['world_size']} GPUs {finding}"
        f"{style.three_digits(row['hours'])} h, {style.three_digits(row['node_hours'])} node-hours"
    )


def _has_limits(points: pd.DataFrame) -> bool:
    return bool(points.filter(like="limit_").notna().any(axis=None))


def _name(row: pd.Series) -> str:
    return f"{style.strategy_name(row['strategy'])}, {style.loader_name(row['loader'])}"


def _looks(points: pd.DataFrame) -> style.Looks:
    """Return how each strategy with its loader looks."""
    strategies, loaders = style.strategy_looks(points["strategy"]), set(points["loader"])
    return {
        _name(row): strategies[row["strategy"]] | style.loader_look(row["loader"], "", loaders)
        for _, row in points.drop_duplicates(["strategy", "loader"]).iterrows()
    }


def _time(ax: Axes, points: pd.DataFrame, looks: style.Looks) -> None:
    curves.rank_axis(ax, points["world_size"], "GPUs")
    reach = points[["hours_low", "hours_high"]].stack()
    ax.set_yscale("log")
    curves.log_ticks(ax.yaxis, reach.min(), reach.max())
    ax.set_ylabel("time of training (h)")
    table = points.assign(option=[_name(row) for _, row in points.iterrows()])
    sizes = {strategy: 7 - 3 * n for n, strategy in enumerate(table["strategy"].unique()[:2])}
    for name, look in looks.items():  # options of the same time: a mark around the other
        own = table[table["option"] == name].sort_values("world_size")
        x, size = own["world_size"].astype(float), sizes.get(own["strategy"].iloc[0], 4)
        ax.fill_between(x, own["hours_low"], own["hours_high"], color=look["color"], alpha=0.15,
                        linewidth=0)  # fmt: skip
        if len(own) == 1:  # a band has no width there
            ax.vlines(x, own["hours_low"], own["hours_high"], color=look["color"], alpha=0.4)
        ax.plot(x, own["hours"], **look | {"markersize": size, "zorder": 4})
        advised = own["advised"].to_numpy(bool)
        ax.plot(x[advised], own.loc[advised, "hours"], **_RING)
    for value in points["limit_deadline"].dropna().unique():
        ax.axhline(value, **_LIMIT)
    for value in points["limit_node_hours"].dropna().unique():
        one = points.drop_duplicates("world_size").sort_values("world_size")
        ax.plot(one["world_size"], value * one["hours"] / one["node_hours"], **_LIMIT)


def _accuracy(ax: Axes, points: pd.DataFrame) -> None:
    known = points[points["accuracy"].notna()]
    one = known.drop_duplicates("global_batch_size").sort_values("global_batch_size")
    batches = one["global_batch_size"]
    curves.batch_axis(ax, batches.iloc[:: -(-len(one) // _MOST_BATCHES)], "global batch (images)")
    one = one.assign(value=one["accuracy"], low=one["accuracy_low"], high=one["accuracy_high"])
    grey = {"color": "#444444", "marker": "o", "linestyle": "none", "markersize": 5}
    curves.line(ax, batches, one, grey)
    advised = known[known["advised"]]
    ax.plot(advised["global_batch_size"], advised["accuracy"], **_RING)
    for value in points["limit_accuracy"].dropna().unique():
        ax.axhline(value, **_LIMIT)
    ax.set_ylabel("top-1 accuracy (%)")
