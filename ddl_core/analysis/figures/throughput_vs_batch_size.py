"""Throughput over the batch of a worker: a panel per network, a line per framework and workers."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.analysis.arms import ARM, ARM_TYPES, ORIGIN_TYPES
from ddl_core.analysis.figures.over_workers import stack
from ddl_core.analysis.plot import captions, marks, scales, style
from ddl_core.analysis.plot.canvas import drawn_panels, frame, styled
from ddl_core.analysis.plot.style import SEPARATOR

POINTS = {
    "panel": "string",
    **ARM_TYPES,
    "world_size": "Int64",
    "local_batch_size": "Int64",
    "line": "string",
    "n": "Int64",
    "windows": "Int64",
    "failed": "Int64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    **ORIGIN_TYPES,
}
_LINES: list[Any] = ["solid", (0, (4, 1.5)), (0, (1, 1.5)), *style.SPARE_LINES]


def points(arms: pd.DataFrame) -> pd.DataFrame:
    """Return images/s over the batch of a worker: `POINTS`.

    Of what was measured at two batch sizes or more; batches alone differ along a line. See
    `arm_table` for the values.
    """
    batch = ", batch " + arms["local_batch_size"].astype("string")
    pairs = zip(arms["setting"], batch, strict=True)
    table = arms.assign(
        where=pd.Series([name.replace(one, "", 1) for name, one in pairs], arms.index, dtype=str)
    )
    reached = table["local_batch_size"].where(table["n"] > 0)
    keys = [table[name] for name in ("where", "hardware", *ARM, "world_size")]
    table = style.with_framework(table[reached.groupby(keys).transform("nunique") > 1])
    loaders = map(style.loader_name, table["loader"], table["data_format"])
    table["panel"] = pd.array(list(loaders), dtype="string") + SEPARATOR + table["where"]
    table["panel"] += ", " + table["model"].map(style.model_name)
    table["line"] = [
        f"{style.strategy_name(framework)}, {workers} worker{'s' if workers > 1 else ''}"
        for framework, workers in zip(table["framework"], table["world_size"], strict=True)
    ]
    order = ["panel", "line", "local_batch_size"]
    return stack([table.sort_values(order)], POINTS)


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return images/s over the batch of a worker, in looks of framework and number of workers."""
    panels, looks = drawn_panels(points), _looks(points)
    figure, axes = frame(
        "How does throughput grow with the batch of each worker?",
        panels,
        [2.2] * len(panels),
        marks.handles(looks),
        [
            "The batch of all workers together is that of one times their number.",
            *captions.runs(points),
            *captions.panels_not_drawn(points, panels),
        ],
    )
    for name, ax in zip(panels, axes, strict=True):
        part = points[(points["panel"] == name) & (points["n"] > 0)]
        scales.value_axis(ax, part["local_batch_size"], "batch of a worker (images)")
        scales.rate_axis(ax, part[["value", "low", "high"]].stack())
        beside = scales.side_by_side(ax, part["local_batch_size"], part["line"], list(looks))
        marks.lines(ax, part.assign(at=beside), "at", "line", looks, markersize=5)
    return figure


def _looks(points: pd.DataFrame) -> style.Looks:
    """Return how each line looks, frameworks first, fewest workers first."""
    table = style.with_framework(points)
    frameworks = style.strategy_looks(table["framework"])
    sizes = sorted(table["world_size"].unique())
    lines = table.drop_duplicates("line").to_dict("records")
    order = [*frameworks]
    return {
        row["line"]: frameworks[row["framework"]]
        | {"linestyle": _LINES[sizes.index(row["world_size"]) % len(_LINES)]}
        for row in sorted(lines, key=lambda row: (order.index(row["framework"]), row["world_size"]))
    }
