"""Runs of accuracy studies, what their configurations are called, and how fast they learn."""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from ddl_tools.analysis.configurations import commits, specs, varies, with_settings
from ddl_tools.analysis.tables import not_emulated
from ddl_tools.names import describe, joined, label
from ddl_tools.records.identity import BATCH, LEARNING, REPEATS

# Top-1 accuracy with the running statistics of batch normalisation, and with precise ones.
RUNNING, PRECISE = "running statistics", "statistics estimated anew"  # in this order
EVALUATIONS = {RUNNING: "top1", PRECISE: "precise_bn_top1"}


def made(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of accuracy studies that were made to their end, good or bad.

    Added: ``label`` (what a configuration is called), ``commit``, the columns of `with_settings`.
    """
    runs = not_emulated(runs)
    ended = runs["status"].isin(["completed", "failed"])
    ways = varies(runs, LEARNING | {"optimizer"})
    table = with_settings(runs[ways & ended & (runs["work"] == "train")])
    table["diverged"] = table["diverged"].fillna(False).astype(bool)
    table["commit"] = commits(table)
    return table.assign(label=_labels(table))


def _labels(table: pd.DataFrame) -> pd.Series:
    """Return what each configuration is called: how it learns, and what else sets it apart.

    Those of several batch sizes have one label, and are one line. Where a batch is made in several
    ways, of more ranks or of more micro-batches, the label names the way.
    """
    found = pd.Series("", index=table.index, dtype="string")
    for (_, optimizer, schedule), runs in table.groupby(["study", "optimizer", "schedule"]):
        fields = specs(runs)
        apart = _unusual(label(fields, (*REPEATS, *BATCH)))
        shapes = runs[[*BATCH]].assign(apart=apart, batch=runs["global_batch_size"])
        if shapes.drop_duplicates().duplicated(["apart", "batch"]).any():
            apart = label(fields, REPEATS)
        way = describe({"optimizer": optimizer, "schedule": schedule})
        found.loc[runs.index] = [
            joined(way, *parts) for parts in zip(apart, runs["differs"], strict=True)
        ]
    return found


def _unusual(labels: list[str]) -> list[str]:
    """Return labels without the parts that most runs have: e.g. only what was tried beside them."""
    ((most, count),) = Counter(labels).most_common(1)
    if 2 * count <= len(labels):
        return labels
    usual = most.split(", ")
    return [joined(*(one for one in text.split(", ") if one not in usual)) for text in labels]


def numbers(cell: Any) -> np.ndarray:
    """Return the numbers of a cell that lists them."""
    return np.array([] if pd.isna(cell) else str(cell).split(";"), dtype=float)


def arrivals(runs: pd.DataFrame, target: float) -> tuple[int, np.ndarray]:
    """Return how many runs reached an accuracy, and the epochs and seconds of each run to it.

    Those are missing unless all runs reached it: the others' would be those of the lucky ones. A
    run that diverged did not; one that failed says nothing.
    """
    made = runs[runs["status"] != "failed"].to_dict("records")
    hits = [hit for run in made if (hit := _reached(run, target))]
    everyone = hits and len(hits) == len(made)
    return len(hits), np.array(hits if everyone else [(np.nan, np.nan)])


def _reached(run: dict[str, Any], target: float) -> tuple[float, float] | None:
    """Return epochs and seconds to the first evaluation that is as good as `target`."""
    hit = np.flatnonzero(numbers(run["evaluated_top1"]) >= target)
    if not hit.size:
        return None
    first = hit[0]
    return numbers(run["evaluated_epochs"])[first], numbers(run["evaluated_train_s"])[first]
