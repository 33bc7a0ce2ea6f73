"""Test accuracy of every library and strategy at equal settings: a row each, every run a dot."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from ddl_core.analysis.arms import ARM_TYPES, KEYS, ORIGIN_TYPES, made_runs
from ddl_core.analysis.figures import by_arm
from ddl_core.analysis.figures.over_workers import stack, with_model
from ddl_core.analysis.plot import captions, marks, style
from ddl_core.analysis.plot.canvas import styled
from ddl_core.analysis.plot.rows import row_frame

POINTS = {
    "panel": "string",
    **ARM_TYPES,
    "dataset": "string",
    "local_batch_size": "Int64",
    "world_size": "Int64",
    "repeat": "Int64",
    "run_id": "string",
    "lost": "boolean",
    "value": "float64",
    "n": "Int64",
    "failed": "Int64",
    "mean": "float64",
    "low": "float64",
    "high": "float64",
    **ORIGIN_TYPES,
}


def points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of each run that evaluated, of studies with several libraries: `POINTS`.

    value is its last top-1 accuracy, 0 to 1, missing if the run was lost; mean, low and high are
    mean and range of the n runs of its arm.
    """
    made = made_runs(runs)
    made = made[made["top1"].notna() | made["lost"]]
    libraries = made["library"].where(made["top1"].notna())
    made = made[libraries.groupby(made["study"]).transform("nunique") > 1]
    made = made.assign(value=made["top1"].mask(made["lost"]), panel=with_model(made))
    arms = made.groupby(KEYS)
    made = made.assign(
        n=arms["value"].transform("count"),
        failed=arms["lost"].transform("sum"),
        mean=arms["value"].transform("mean"),
        low=arms["value"].transform("min"),
        high=arms["value"].transform("max"),
    )
    order = ["panel", *ARM_TYPES, "world_size", "repeat", "run_id"]
    return stack([made], POINTS).sort_values(order, ignore_index=True)


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return every run's accuracy, a row for each library, strategy, loader and world size."""
    points = style.with_framework(points)
    looks = style.strategy_looks(points["framework"])
    figure, panels = row_frame(
        "Do all libraries reach the same test accuracy?",
        points,
        _legend(looks),
        _caption(points),
        _texts,
        "top-1 accuracy of the test images",
        lines=1,
    )
    for ax, table in panels:
        by_arm.draw_runs(ax, table, looks)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    return figure


def _texts(arm: pd.DataFrame) -> list[str]:
    first = arm.iloc[0]
    text = f"{first['mean']:.1%} [{first['low']:.1%}, {first['high']:.1%}]  " if first["n"] else ""
    lost = f", {first['failed']} lost" if first["failed"] else ""
    return [f"{text}n = {first['n']}{lost}".replace("%", " %")]


def _legend(looks: style.Looks) -> list[Line2D]:
    dots = marks.handles(style.strategies_named(looks), ": one run", markersize=4)
    others = {"mean": by_arm.MEAN | {"marker": "|"}, "range": by_arm.BAND | {"linestyle": "solid"}}
    return [*dots, *marks.handles(others, color=style.UNNAMED_COLOUR)]


def _caption(points: pd.DataFrame) -> list[str]:
    measured = points[points["n"] > 0]
    if measured.empty:
        return ["No study measured here has evaluated with several libraries."]
    names = ", ".join(style.dataset_name(name) for name in measured["dataset"].unique())
    return [
        f"{names}. All arms of a panel have the same settings, initial weights and images. A dot: "
        "the last evaluation of a run; bars: the range, which is no confidence interval.",
        *captions.lost(points.assign(failed=points["lost"])),
        *captions.machines(measured),
        captions.commits(measured),
    ]
