"""What an epoch's time is spent on, and what each cause costs against the smallest size measured.

All times are worker-seconds per image, so that sizes can be compared: with G workers and N images
in an epoch of T seconds, G T / N. The parts of an epoch add up to it, and so do the losses:

    1 - E_G = (t_G - t_G0) / t_G = sum over causes of (c_G - c_G0) / t_G
"""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.analysis.arms import ARM_TYPES, KEYS, ORIGIN_TYPES, made_runs
from ddl_core.analysis.plot import style
from ddl_core.analysis.plot.rows import percent, stacked
from ddl_core.analysis.plot.style import SEPARATOR
from ddl_core.records.run import Spent

TRAINING = [name.removesuffix("_s") for name in Spent.model_fields]
CAUSES = [*TRAINING, "evaluation"]

BUDGET = {
    "panel": "string",
    **ARM_TYPES,
    "local_batch_size": "Int64",
    "world_size": "Int64",
    "base_world_size": "Int64",
    "n": "Int64",
    "failed": "Int64",
    "cause": "string",
    "worker_s_per_image": "float64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "loss": "float64",
    "efficiency": "float64",
    **ORIGIN_TYPES,
}
_MOST_LOSSES = 3  # told beside a bar
_LEAST_LOSS = 0.01
_SHARED = [*(name for name in KEYS if name != "setting"), "study", "local_batch_size", "on_cpu"]


def points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per arm, number of workers and cause: `BUDGET`.

    Means over the n runs of an arm that say where their time went: means, unlike medians, add up.
    value is the share of an epoch with its evaluation, 0 to 1, low and high the extremes of the
    runs. loss is the share of the throughput of an ideal G workers that the cause takes, negative
    where it takes less than at the base; efficiency is 1 - the sum of losses. Both are empty at
    the base itself and for the evaluation, which no throughput contains.
    """
    table = made_runs(runs)
    table = table[table["lost"] | table["spent_compute_s"].notna()]
    table["panel"] = table["setting"] + SEPARATOR + table["model"].map(style.model_name)
    rows: list[dict[str, Any]] = []
    bases: dict[tuple[Any, ...], tuple[int, pd.Series]] = {}
    for key, arm in table.groupby(KEYS):  # by world size last: the first of an arm is its base
        known = arm[~arm["lost"]]
        shared = arm.iloc[0][[*_SHARED, "panel"]].to_dict() | {
            "n": len(known),
            "failed": int(arm["lost"].sum()),
            "commit": ";".join(sorted(set(known["commit"]))),
        }
        parts = _worker_seconds(known)
        if len(known):
            base = bases.setdefault(key[:-1], (shared["world_size"], parts[TRAINING].mean()))
            shared["base_world_size"] = base[0]
            rows += _causes(shared, parts, base[1])
    return pd.DataFrame(rows, columns=list(BUDGET)).astype(BUDGET)


def _worker_seconds(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per run: worker-seconds per image of each cause."""
    names = [*(f"spent_{name}_s" for name in TRAINING), "evaluation_warm_epoch_s"]
    scale = runs["world_size"].astype(float) / runs["images_per_epoch"].astype(float)
    return runs[names].set_axis(CAUSES, axis=1).mul(scale, axis=0)


def _causes(shared: dict[str, Any], parts: pd.DataFrame, base: pd.Series) -> list[dict[str, Any]]:
    shares = parts.div(parts.sum(axis=1), axis=0)
    mean = parts.mean()
    training = mean[TRAINING].sum()
    losses = (mean[TRAINING] - base) / training
    grown = shared["world_size"] != shared["base_world_size"]
    return [
        shared
        | {
            "cause": cause,
            "worker_s_per_image": mean[cause],
            "value": shares[cause].mean(),
            "low": shares[cause].min(),
            "high": shares[cause].max(),
            "loss": losses.get(cause) if grown else None,
            "efficiency": base.sum() / training if grown else None,
        }
        for cause in CAUSES
    ]


def draw(points: pd.DataFrame) -> Figure:
    """Return the shares of each arm's epoch, and what they cost against fewer workers."""
    one = (points["world_size"] == 1).any()
    return stacked(
        points,
        "Where does an epoch's time go, and what does that cost at this size?",
        style.SPENT_LOOKS,
        _losses,
        "share of an epoch with its evaluation, mean over workers",
        [
            "From marks in every step, without a profiler; warm epochs only. Communication: what "
            "backward does not hide; transfer is that of the worker that came last, the rest waits "
            "for slower workers.",
            *(["One worker: its framework copies gradients all the same."] if one else []),
            "Beside the bars: parallel efficiency against the arm's base, from these means, and "
            "what each cause takes of the ideal throughput there (evaluation is in no throughput).",
        ],
    )


def _losses(arm: pd.DataFrame) -> list[str]:
    """Return what is told beside a bar: E, and the causes that take most, largest first."""
    first = arm.iloc[0]
    count = f"n = {first['n']}" + (f", {first['failed']} lost" if first["failed"] else "")
    if pd.isna(first["efficiency"]):
        return [f"base, {count}"]
    large = arm[arm["loss"].abs() >= _LEAST_LOSS].sort_values("loss", key=abs, ascending=False)
    told = [
        f"{style.SPENT_LOOKS[row['cause']][0]} {percent(-row['loss'], signed=True)}"
        for row in large.head(_MOST_LOSSES).to_dict("records")
    ]
    return [f"E = {first['efficiency']:.2f}, {count}", ", ".join(told[:2]), *told[2:]]
