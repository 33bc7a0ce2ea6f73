"""Advice: the options that meet some limits, and accuracy over global batch."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddl_tools.analysis.plot import curves
from ddl_tools.analysis.plot.canvas import frame, handles, styled
from ddl_tools.analysis.question import (
    OF_NO_RUN,
    Question,
    Tables,
    question,
    records,
    with_line,
)
from ddl_tools.records.paths import PROJECT, Tree
from ddl_tools.scaling import render
from ddl_tools.scaling.advise import Advice, Request, advise
from ddl_tools.scaling.candidate import Machine
from ddl_tools.scaling.options import Limits

# The example of docs/how-to/choose-a-stack.md: the paper's network on the paper's machine.
JUWELS = Machine("juwels_booster", "JUWELS Booster", 4)
EXAMPLE = Request(JUWELS, "resnet50", Limits(deadline=1.0, accuracy=75.0))

_LIMIT: dict[str, Any] = {"color": "#B00000", "linewidth": 1.0, "linestyle": (0, (4, 2))}
_RING: dict[str, Any] = {
    "marker": "o",
    "linestyle": "none",
    "markersize": 13,
    "zorder": 6,
    "markerfacecolor": "none",
    "markeredgecolor": "#000000",
}
_MARK: dict[str, Any] = {"color": "#444444", "marker": "o", "linestyle": "none", "markersize": 5}
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


def _limit(points: pd.DataFrame) -> float:
    """Return the least accuracy that is asked for, 0 without one."""
    return float(points["limit_accuracy"].fillna(0).iloc[0])


@question("advice")
class Options(Question):
    """The options of the example of docs/how-to/choose-a-stack.md."""

    asks = "Which configuration meets the limits?"
    notebook = "23_advise"
    needs = OF_NO_RUN
    columns = "line world_size hours node_hours accuracy limits"
    text = """
{% if not limit %}
- Accuracy goes from
{% for one in ends %}
{{ "{:.0f} % at {:,} images".format(one.accuracy, one.global_batch_size) }}
{{ "" if loop.last else " to " }}
{% endfor %}
.
{% else %}
- An accuracy of {{ "%g" | format(limit) }} % allows
{{ "batches up to {:,} images".format(kept | max) if kept else "no batch for sure" }}.
{% endif %}
{% for row in rows %}
- {{ row.line }} on {{ row.world_size }} GPUs: {{ row | estimate("hours") }} h,
{{ row | estimate("node_hours") }} node-hours{{ "; limits: " ~ row.limits if row.limits else "" }}.
{% endfor %}
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        return points()

    @styled
    def draw(self, points: pd.DataFrame) -> Figure:
        """Return the accuracy of each global batch with its limit and the advised option."""
        figure, (ax,) = frame(
            self.title(points),
            [""],
            [2.6],
            [
                *handles({"advised": _RING}, markersize=9),
                *([Line2D([], [], label="limit", **_LIMIT)] if _limit(points) else []),
            ],
            [
                f"{points['request'].iloc[0]}.",
                "Between two known batches, accuracy is the range of both.",
            ],
        )
        known = points[points["accuracy"].notna()]
        one = known.drop_duplicates("global_batch_size").sort_values("global_batch_size")
        batches = one["global_batch_size"]
        curves.batch_axis(
            ax, batches.iloc[:: -(-len(one) // _MOST_BATCHES)], "global batch (images)"
        )
        one = one.assign(value=one["accuracy"], low=one["accuracy_low"], high=one["accuracy_high"])
        curves.line(ax, batches, one, _MARK)
        advised = known[known["advised"]]
        ax.plot(advised["global_batch_size"], advised["accuracy"], **_RING)
        if limit := _limit(points):
            ax.axhline(limit, **_LIMIT)
        ax.set_ylabel("top-1 accuracy (%)")
        return figure

    def enough(self, points: pd.DataFrame) -> bool:
        """Say whether the accuracy of any option is known."""
        return bool(points["accuracy"].notna().any())

    def instead(self, points: pd.DataFrame) -> str:
        return "accuracy_vs_batch_size"

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        """Return the advised option, then those that meet the limits."""
        limits = points["limits"].map(["", "met", "uncertain", "violated"].index)
        order = limits.mask(points["advised"].astype(bool), -1)
        table = with_line(points.assign(framework="torch", model="", order=order))
        return table.sort_values(["order", "node_hours", "hours"], kind="stable")

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        known = points[points["accuracy"].notna()].sort_values("global_batch_size")
        limit = _limit(points)
        return super().facts(points) | {
            "limit": limit,
            "kept": known.loc[known["accuracy_low"] >= limit, "global_batch_size"].tolist(),
            "ends": records(known.iloc[[0, -1]]) if len(known) else [],
        }
