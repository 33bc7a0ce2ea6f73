"""Seconds of training to an accuracy, over the number of ranks."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ddl_tools.analysis.configurations import (
    ended_runs,
    stack,
    starts,
    with_model,
)
from ddl_tools.analysis.figures.accuracy_runs import arrivals
from ddl_tools.analysis.figures.columns import ORIGIN, WHO, typed
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import handles, panel_figure, styled
from ddl_tools.analysis.plot.style import SEPARATOR
from ddl_tools.analysis.question import Question, Tables, question, with_line

TIMES = typed(
    "panel",
    WHO,
    "dataset local_batch_size world_size target n reached failed epochs",
    "value low high",
    ORIGIN,
    epochs="float64",
)
# Shares of the test images, absolute: a share of a study's best would be another in each study.
# The papers name none. The second is for the part of the data that a laptop trains on.
TARGETS = {"cifar10": 0.9, "fashion_mnist": 0.6}


def time_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per configuration and number of ranks, where two were evaluated: `TIMES`.

    value is the median of the seconds that n runs trained to `TARGETS`, evaluations not counted,
    low and high the least and the most; epochs is the median of theirs, see `arrivals`. All are
    missing where not every run came so far (``reached``).
    """
    made = ended_runs(runs)
    made = made[made["dataset"].isin(TARGETS) & made["evaluated_top1"].notna()]
    made["panel"] = made["loader"].map(style.loader_name) + SEPARATOR + with_model(made)
    sizes = made.groupby("curve")["world_size"]
    rows = [_time(group) for group in starts(made[sizes.transform("nunique") > 1])]
    return stack([pd.DataFrame(rows, columns=list(TIMES))], TIMES)


def _time(group: pd.DataFrame) -> dict[str, Any]:
    first, known = group.iloc[0].to_dict(), group[group["status"] != "failed"]
    target = TARGETS[first["dataset"]]
    reached, hits = arrivals(group, target)
    epochs, seconds = hits.T
    return first | {
        "target": target,
        "n": len(known),
        "reached": reached,
        "failed": len(group) - len(known),
        "epochs": np.median(epochs),
        "value": np.median(seconds),
        "low": min(seconds),
        "high": max(seconds),
        "commit": ";".join(sorted(set(known["commit"]))),
    }


def _time_caption(points: pd.DataFrame) -> list[str]:
    if points.empty:
        return []
    known = points[points["n"] > 0]
    short = int((known["reached"] < known["n"]).sum())
    return [
        "Medians of the runs; bars: their range. Without evaluations.",
        *([f"Configurations not drawn, as not every run arrived: {short}."] if short else []),
        *captions.lost(points),
        *captions.discontinued(known),
    ]


@question("time_to_accuracy")
class TimeToAccuracy(Question):
    """Seconds of training to an accuracy."""

    asks = "How long does training to an accuracy take?"
    notebook = "21_related_papers"
    needs = "CIFAR-10 or Fashion-MNIST, evaluated at three numbers of ranks"
    over = "world_size"
    columns = "line world_size value epochs n"
    value = "time (s)"
    text = """
{% if rows %}
- {{ rows[0].line }} on {{ rows[0].world_size | plural("rank") }} reaches
{{ rows[0].target | percent }} after {{ rows[0] | estimate }} s of training,
the shortest median time.
{% else %}
- No configuration has reached the accuracy at two numbers of ranks.
{% endif %}
{% for row in rows[1:] %}
- {{ row.line }} on {{ row.world_size | plural("rank") }}: {{ row | estimate }} s.
{% endfor %}
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        return time_points(tables.runs)

    @styled
    def draw(self, points: pd.DataFrame) -> Figure:
        """Return the seconds to accuracy over ranks; a panel per setting, network and loader."""
        points = style.with_framework_strategy(points)
        looks = style.strategy_looks(points["framework_strategy"])
        legend = handles(style.strategies_named(looks), markersize=5)
        caption = _time_caption(points)
        figure, panels = panel_figure(self.title(points), points, legend, caption, 2.2)
        for ax, part in panels:
            curves.rate_axis(ax, part[["value", "low", "high"]].stack(), "seconds of training")
            curves.rank_axis(ax, part["world_size"])
            curves.lines(ax, part, "world_size", "framework_strategy", looks, markersize=5)
        return figure

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        return with_line(points[points["value"].notna()]).sort_values("value")
