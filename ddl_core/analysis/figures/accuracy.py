"""What the figures of accuracy share: the runs they show, what these are called, how they look."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from ddl_core.analysis.arms import asks_for_accuracy, commits, with_settings
from ddl_core.analysis.figures import study_arms
from ddl_core.analysis.plot import marks, style
from ddl_core.spec.labels import REPEATS, labels

# What stands in a panel's name, in a way's, or on the axis of batches.
_TOLD = ["dataset", "model", "optimizer", "schedule", "nodes", "gpus_per_node",
         "local_batch_size", "accumulation"]  # fmt: skip
_CROSS: dict[str, Any] = {"color": style.UNNAMED_COLOUR, "linestyle": "none", "marker": "x",
                          "markersize": 8, "markeredgewidth": 1.8, "zorder": 5}  # fmt: skip


def made(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of accuracy studies that were made to their end, good or bad.

    Added: ``label`` (what the arm is called: two arms of a study with one batch never share it),
    ``commit``, and the columns of `with_settings`.
    """
    ended = runs["status"].isin(["completed", "failed"])
    table = with_settings(runs[asks_for_accuracy(runs) & ended & (runs["work"] == "train")])
    table["diverged"] = table["diverged"].fillna(False).astype(bool)
    table["commit"] = commits(table)
    table["label"] = pd.Series("", index=table.index, dtype="string")
    for _, way in table.groupby(["study", "optimizer", "schedule"]):
        table.loc[way.index, "label"] = _way_labels(way)
    for _, study in table.groupby("study"):
        table.loc[study.index, "label"] += _places(study)
    for _, same in table.groupby(["study", "dataset", "model", "label", "global_batch_size"]):
        arms, firsts = _numbered(same)
        names = study_arms.told_apart(firsts, firsts["label"])
        table.loc[same.index, "label"] = arms.map(dict(enumerate(names)))
    return table


def _numbered(runs: pd.DataFrame) -> tuple[pd.Series, pd.DataFrame]:
    """Return the number of each run's arm, and the first run of each arm, in their order."""
    arms = runs.groupby(study_arms.KEY, dropna=False, sort=False).ngroup()
    return arms, runs[~arms.duplicated()]


def _way_labels(way: pd.DataFrame) -> pd.Series:
    """Return the name of a way to learn with what else its runs differ in, e.g. their rates."""
    arms, firsts = _numbered(way)
    more = labels(study_arms.specs(firsts), (*REPEATS, *_TOLD))
    name = style.way_name(way["optimizer"].iloc[0], way["schedule"].iloc[0])
    names = [", ".join(filter(None, [name, text])) for text in more]
    return arms.map(dict(enumerate(names))).astype("string")


def _places(study: pd.DataFrame) -> pd.Series:
    """Return where each run was made, as the end of its label; nothing if all are of one place."""
    places = study.groupby(study_arms.PLACE, dropna=False, sort=False).ngroup()
    texts = study_arms.place_texts(study[~places.duplicated()])
    ends = {number: f", {text}" if text else "" for number, text in enumerate(texts)}
    return places.map(ends).astype("string")


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
