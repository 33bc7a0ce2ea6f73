"""What every arm has reached at every number of workers: medians, intervals, efficiency."""

from typing import Any

import numpy as np
import pandas as pd

from ddl_core.analysis import metrics
from ddl_core.analysis.settings import ARM, with_settings

VALUE = "throughput_samples_per_s"

_SHARED = ["setting", "study", *ARM, "local_batch_size", "hardware", "on_cpu"]
COLUMNS = [
    *_SHARED,
    "world_size",
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


def usable(runs: pd.DataFrame) -> pd.Series:
    """Mark the runs whose throughput counts: completed, finite losses, at least one warm epoch."""
    return (runs["status"] == "completed") & ~_diverged(runs) & runs[VALUE].notna()


def lost(runs: pd.DataFrame) -> pd.Series:
    """Mark the runs that were made and give no throughput: failed, or diverged."""
    return (runs["status"] == "failed") | _diverged(runs)


def _diverged(runs: pd.DataFrame) -> pd.Series:
    return runs["diverged"].fillna(False).astype(bool)


def arm_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting, arm and world size: `COLUMNS`.

    value, low and high are the median throughput (images/s) of n runs and its interval. efficiency
    is relative to the smallest world size at hand of the same arm, base_world_size, where it is 1
    by definition and has no interval. A row whose runs were all lost has n = 0 and no value.
    """
    table = with_settings(runs[usable(runs) | lost(runs)])
    arms = table.groupby(["setting", "hardware", *ARM], sort=True)
    rows = [row for _, arm in arms for row in _arm_rows(arm)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _arm_rows(arm: pd.DataFrame) -> list[dict[str, Any]]:
    shared = {name: arm[name].iloc[0] for name in _SHARED}
    rows = []
    base: tuple[int, np.ndarray] | None = None
    for size, runs in arm.groupby("world_size"):
        workers = int(size)
        good = runs[usable(runs)]
        values = good[VALUE].to_numpy(dtype=float)
        row = {
            **shared,
            "world_size": workers,
            "n": len(values),
            "failed": int(lost(runs).sum()),
            "commit": commits(good),
        }
        if len(values):
            base = base or (workers, values)
            row |= _reached(workers, values, *base)
        rows.append(row)
    return rows


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


def commits(runs: pd.DataFrame) -> str:
    """Return the commits of `runs`, eight digits each, ``+`` where files were changed."""
    dirty = runs["git_dirty"].fillna(False).astype(bool)
    pairs = zip(runs["git_commit"].fillna("unknown"), dirty, strict=True)
    return ";".join(sorted({commit[:8] + ("+" if changed else "") for commit, changed in pairs}))
