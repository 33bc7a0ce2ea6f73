"""What every arm has reached at every number of workers: medians, intervals, efficiency."""

from typing import Any

import numpy as np
import pandas as pd

from ddl_core.analysis import metrics
from ddl_core.analysis.figures.accuracy import asks_for_accuracy
from ddl_core.analysis.settings import ARM, with_settings

VALUE = "throughput_samples_per_s"

# One row of the arm table has these in common; every change of one of them is another row.
KEYS = ["setting", "hardware", *ARM, "world_size"]
_SHARED = [*KEYS, "study", "local_batch_size", "on_cpu"]
COLUMNS = [
    *_SHARED,
    "base_world_size",
    "n",
    "failed",
    "value",
    "low",
    "high",
    "efficiency",
    "efficiency_low",
    "efficiency_high",
    "commit",
]


def made_runs(runs: pd.DataFrame, work: str = "train") -> pd.DataFrame:
    """Return the runs that were made to their end, good or bad, with what pools and judges them.

    Only those of one kind of `work`: the throughput of a loader by itself is no training's. And
    none of a study of accuracy.

    Added columns: those of `with_settings`; ``lost`` (failed, or a loss that is not finite: no
    throughput counts); ``value`` (throughput, missing if lost); ``commit`` (eight digits, ``+`` if
    files were changed).
    """
    runs = runs[(runs["work"] == work) & ~asks_for_accuracy(runs)]
    diverged = runs["diverged"].fillna(False).astype(bool)
    lost = (runs["status"] == "failed") | diverged
    measured = (runs["status"] == "completed") & runs[VALUE].notna()
    table = with_settings(runs.assign(lost=lost, value=runs[VALUE].mask(lost))[measured | lost])
    return table.assign(commit=commits(table)).astype({"lost": bool})


def commits(runs: pd.DataFrame) -> pd.Series:
    """Return the code of each run: eight digits, ``+`` if files were changed."""
    dirty = runs["git_dirty"].fillna(False).astype(bool).map({True: "+", False: ""})
    return runs["git_commit"].fillna("unknown").str[:8] + dirty.astype("string")


def arm_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting, arm and world size: `COLUMNS`.

    value, low and high are the median throughput (images/s) of n runs and its interval. efficiency
    is relative to the smallest world size at hand of the same arm, base_world_size, where it is 1
    by definition and has no interval. A row whose runs were all lost has n = 0 and no value.
    """
    table = made_runs(runs)
    values, lost, commits = (table[name].to_numpy() for name in ("value", "lost", "commit"))
    shared = table[_SHARED].to_dict("records")
    rows: list[dict[str, Any]] = []
    bases: dict[tuple[Any, ...], tuple[int, np.ndarray]] = {}
    groups = table.groupby(KEYS).indices
    for key in sorted(groups):  # by world size last: the first of an arm is its base
        members = groups[key]
        known = values[members][~np.isnan(values[members])]
        row = shared[members[0]] | {
            "n": len(known),
            "failed": int(lost[members].sum()),
            "commit": ";".join(sorted(set(commits[members][~lost[members]]))),
        }
        if len(known):
            base = bases.setdefault(key[:-1], (row["world_size"], known))
            row |= _reached(row["world_size"], known, *base)
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def _reached(
    workers: int, values: np.ndarray, base_workers: int, base_values: np.ndarray
) -> dict[str, Any]:
    median = float(np.median(values))
    low, high = metrics.bootstrap_interval(values)
    row = {"base_world_size": base_workers, "value": median, "low": low, "high": high}
    if workers == base_workers:
        return row | {"efficiency": 1.0}
    scale = base_workers / workers
    low, high = metrics.bootstrap_ratio_interval(values, base_values)
    return row | {
        "efficiency": metrics.relative_efficiency(
            base_workers, float(np.median(base_values)), workers, median
        ),
        "efficiency_low": low * scale,
        "efficiency_high": high * scale,
    }
