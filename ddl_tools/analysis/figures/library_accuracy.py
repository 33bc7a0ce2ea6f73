"""Accuracy of the configurations of a study of several libraries, best first."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ddl_tools.analysis.configurations import ended_runs
from ddl_tools.analysis.figures.columns import ORIGIN, typed
from ddl_tools.analysis.figures.study_rows import (
    REACHED,
    WHO_ROWS,
    Groups,
    draw_runs,
    studies,
    value_range,
)
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.canvas import handles, styled
from ddl_tools.analysis.plot.rows import (
    count_text,
    draw_values,
    interval,
    row_figure,
)

ACCURACY = typed(WHO_ROWS, "dataset", REACHED, "repeats", ORIGIN)


def accuracy_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of each configuration that evaluated, of studies of several libraries.

    value is the mean of the last top-1 accuracies of the n runs, 0 to 1, low and high their range.
    """
    made = ended_runs(runs)
    made = made[made["top1"].notna() | made["lost"]]
    made = made.assign(value=made["top1"].mask(made["lost"]))
    several = made["framework"].where(made["value"].notna()).groupby(made["study"])

    def summary(groups: Groups, _: pd.DataFrame) -> list[dict[str, Any]]:
        return [value_range(group["value"]) | {"value": group["value"].mean()} for group in groups]

    return studies(made[several.transform("nunique") > 1], runs, "", summary, ACCURACY)


@styled
def draw_accuracy(points: pd.DataFrame) -> Figure:
    """Return the accuracy of each configuration with the range of its runs, every run a dot."""
    points = style.with_framework_strategy(points)
    looks = style.strategy_looks(points["framework_strategy"])
    known = points[points["n"] > 0]
    title = "No study measured here has evaluated with several libraries"
    if len(known):
        reached = captions.span(100 * known["value"], "{:.1f}")
        names = ", ".join(map(style.dataset_name, known["dataset"].unique()))
        title = f"All libraries reach {reached} % of {names}"
    figure, panels = row_figure(
        title,
        points,
        handles(style.strategies_named(looks)),
        ["Mean of the last top-1 accuracies of n runs, dots: runs; bars: their range.",
         *captions.provenance(points, "")],
        ["n", "top-1 (%)"],
        lambda one: [count_text(one.iloc[0]), _percents(one.iloc[0])],
        "top-1 accuracy of the test images",
    )  # fmt: skip
    for ax, table in panels:
        draw_runs(ax, table, looks)
        draw_values(ax, table, looks)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    return figure


def _percents(row: pd.Series) -> str:
    scaled = 100 * row[["value", "low", "high"]].astype(float)
    return f"{scaled['value']:.1f}{interval(scaled, '{:.1f}')}" if row["n"] else "none"
