"""What every arm has reached at every number of workers: medians, intervals, efficiency.

An arm is strategy x loader x format of the data x model. The format is the arm's: the paper's
loaders read different ones and stand in one panel. A setting is everything that an arm does not
name and speed depends on: runs of two settings never share a median or a line.
"""

from typing import Any

import numpy as np
import pandas as pd

from ddl_core.analysis import metrics
from ddl_core.spec.registry import STRATEGIES
from ddl_core.spec.run import RunSpec

ARM = ["strategy", "loader", "data_format", "model"]
# Columns of many figures' points: what ran, and where it comes from.
ARM_TYPES = dict.fromkeys(["study", *ARM], "string")
ORIGIN_TYPES = {"hardware": "string", "on_cpu": "boolean", "commit": "string"}

# Fields that change neither the work of a training step nor its speed. All others, and every field
# that RunSpec may get later, divide settings: runs are never pooled by oversight.
_FREE = {
    *ARM,
    "nodes",
    "gpus_per_node",
    "device",
    "eval_images",
    "epochs",
    "momentum",
    "weight_decay",
    "schedule",
    "base_lr",
    "warmup_epochs",
    "label_smoothing",
    "eval_every",
    "checkpoint_every",
    "warmup_steps",
    "seed",
    "repeat",
}
_WORK = [name for name in RunSpec.model_fields if name not in _FREE]
_MACHINE = ["device_used", "accelerator", "machine", "cpu_cores"]
_KEY = ["study", *_WORK, *_MACHINE, "method_version"]
_SHOWN = {"image_size", "local_batch_size", "precision", "channels_last", "compile"}
# What a setting's name tells only where its study has several.
_NAMED = [name for name in (*_WORK, "hardware", "method_version") if name not in _SHOWN]

# The same again for the two halves of a training: everything divides them but what is listed here.
# A loader does not know what is done with its batches. How many images an epoch has may differ:
# loading is faster than training, and needs more images for a window as long.
_NOT_OF_LOADING = {
    *(name for name in _WORK if name.split("_")[0] in STRATEGIES),
    "work",
    "train_images",
    "classes",
    "accumulation",
    "precision",
    "channels_last",
    "compile",
    "optimizer",
}
# Training on data that are free does not depend on how data would be read.
_NOT_OF_TRAINING = {
    "dataset",
    "train_images",
    "loader_workers",
    "loader_prefetch",
    "pin_memory",
    "persistent_workers",
}
_PLACE = ["world_size", "hardware"]
LOADING = [name for name in _KEY if name not in _NOT_OF_LOADING]
LOADING += ["loader", "data_format", *_PLACE]
TRAINING = [name for name in _KEY if name not in _NOT_OF_TRAINING]
TRAINING += ["strategy", "model", *_PLACE]

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


def with_settings(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `runs` with the columns setting (a short text), hardware and on_cpu.

    A run that failed before it knew its machine gets that of its study, if the study has only one.
    """
    table = runs.copy()
    _fill_machine(table)
    table["hardware"] = [_hardware(row) for row in table[_MACHINE].to_dict("records")]
    table["hardware"] = table["hardware"].astype("string")
    table["on_cpu"] = table["accelerator"].isna()
    numbers = table.groupby(_KEY, dropna=False, sort=False).ngroup()
    names: dict[int, str] = {}
    for _, study in table.groupby("study"):
        settings = study.assign(number=numbers).drop_duplicates("number")
        varying = [name for name in _NAMED if settings[name].nunique(dropna=False) > 1]
        for row in settings.to_dict("records"):
            names[row["number"]] = _name(row, varying)
    return table.assign(setting=numbers.map(names).astype("string"))


def _fill_machine(table: pd.DataFrame) -> None:
    for _, study in table.groupby("study"):
        unknown = study["machine"].isna()
        known = study.loc[~unknown, _MACHINE].drop_duplicates()
        if len(known) == 1:
            for column in _MACHINE:
                table.loc[study.index[unknown], column] = known[column].iloc[0]


def _name(row: dict, varying: list[str]) -> str:
    parts = [f"{row['image_size']} px", f"batch {row['local_batch_size']}", str(row["precision"])]
    parts += ["channels_last"] if row["channels_last"] else []
    parts += ["compiled"] if row["compile"] else []
    parts += [f"{name}={row[name]}" for name in varying]
    return f"{row['study']}: {', '.join(parts)}"


def _hardware(row: dict) -> str:
    if not pd.isna(row["accelerator"]):
        return str(row["accelerator"])
    if pd.isna(row["machine"]):
        return "unknown machine"
    model = str(row["machine"]).replace("(R)", "").replace("(TM)", "")
    return f"{model}, {row['cpu_cores']} cores, no GPU"


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


def asks_for_accuracy(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Say of each run whether its study varies how is learnt: schedule or optimiser.

    What such a study shows is its accuracy. Its throughputs pool what nobody compares, and stand in
    no figure of throughput.
    """
    ways = runs["optimizer"] + " " + runs["schedule"]
    return ways.groupby(runs["study"]).transform("nunique") > 1
