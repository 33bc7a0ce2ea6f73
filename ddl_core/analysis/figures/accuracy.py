"""What the figures of accuracy share: the runs they show, what these are called, how they look."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from ddl_core.analysis.arms import asks_for_accuracy, commits, told_apart, with_settings
from ddl_core.analysis.plot import marks, style
from ddl_core.analysis.tables import not_emulated
from ddl_core.spec.labels import REPEATS

SHAPE = ["nodes", "gpus_per_node", "local_batch_size", "accumulation"]  # of a global batch
_CROSS: dict[str, Any] = {"color": style.UNNAMED_COLOUR, "linestyle": "none", "marker": "x",
                          "markersize": 8, "markeredgewidth": 1.8, "zorder": 5}  # fmt: skip


def made(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of accuracy studies that were made to their end, good or bad.

    Added: ``label`` (what the arm is called), ``commit``, and the columns of `with_settings`.
    """
    runs = not_emulated(runs)
    ended = runs["status"].isin(["completed", "failed"])
    table = with_settings(runs[asks_for_accuracy(runs) & ended & (runs["work"] == "train")])
    table["diverged"] = table["diverged"].fillna(False).astype(bool)
    table["commit"] = commits(table)
    return table.assign(label=pd.array(_labels(table), dtype="string"))


def _labels(table: pd.DataFrame) -> list[str]:
    """Return what each arm is called: how it learns, and what else sets it apart from those.

    Arms of several batch sizes have one label, and are one line. Where a batch is made in several
    ways, of more ranks or of more micro-batches, each way is told.
    """
    found = pd.Series("", index=table.index, dtype="string")
    for _, runs in table.groupby(["study", "optimizer", "schedule"]):
        apart = told_apart(runs, (*REPEATS, *SHAPE))
        shapes = runs[SHAPE].assign(apart=apart, batch=runs["global_batch_size"])
        if shapes.drop_duplicates().duplicated(["apart", "batch"]).any():
            apart = told_apart(runs, REPEATS)
        found.loc[runs.index] = apart
    names = zip(table["optimizer"], table["schedule"], found, table["differs"], strict=True)
    return [
        style.way_name(optimizer, schedule) + (f", {apart}" if apart else "") + differs
        for optimizer, schedule, apart, differs in names
    ]


def numbers(cell: Any) -> np.ndarray:
    """Return the numbers of a cell that lists them."""
    return np.array([] if pd.isna(cell) else str(cell).split(";"), dtype=float)


def looks(points: pd.DataFrame) -> style.Looks:
    """Return how each label looks, in the order of the legend; paler if its way has another."""
    ways = points[["optimizer", "schedule", "label"]].drop_duplicates()
    schedules = style.listed(ways["schedule"], style.SCHEDULE_NAMES)
    optimizers = style.listed(ways["optimizer"], style.OPTIMIZER_NAMES)
    ways = ways.sort_values(
        ["optimizer", "schedule"],
        key=lambda names: names.map([*optimizers, *schedules].index),
        kind="stable",
    )
    ways["turn"] = ways.groupby(["optimizer", "schedule"]).cumcount()
    return {
        label: _look(style.way_look(optimizer, schedule, schedules), turn)
        for optimizer, schedule, label, turn in ways.itertuples(index=False)
    }


def _look(way: dict[str, Any], turn: int) -> dict[str, Any]:
    """Return the look of the first, second, ... label of a way to learn."""
    if turn == 0:
        return way
    marker = style.SPARE_MARKERS[(turn - 1) % len(style.SPARE_MARKERS)]
    return way | {"color": style.tint(way["color"], max(0.3, 1 - 0.35 * turn)), "marker": marker}


def accuracy_axis(ax: Axes) -> None:
    """Let y be a share in percent."""
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_ylabel("top-1 accuracy V")


def draw_crosses(ax: Axes, table: pd.DataFrame, x: str, y: str, looks: style.Looks) -> None:
    """Draw a cross in the colour of its label for each row: runs that diverged."""
    for label, part in table.groupby("label"):
        ax.plot(part[x], part[y], **_CROSS | {"color": looks[str(label)]["color"]})


def crosses(table: pd.DataFrame) -> list[Line2D]:
    """Return what the legend says of crosses, nothing without any."""
    diverged = table["diverged"].fillna(0).astype(int).sum()
    return marks.handles({"diverged": _CROSS}) if diverged else []
