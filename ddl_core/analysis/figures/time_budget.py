"""What an epoch's time is spent on, and what each cause costs against the smallest size measured.

All times are worker-seconds per image, so that sizes can be compared: with G workers and N images
in an epoch of T seconds, G T / N. The parts of an epoch add up to it, and so do the losses:

    1 - E_G = (t_G - t_G0) / t_G = sum over causes of (c_G - c_G0) / t_G

E itself is that of the arm table, from the same windows as in every other figure, so c_G and c_G0
enter as shares of their t: a loss is c_G / t_G - E_G c_G0 / t_G0.
"""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.analysis.arms import ARM_TYPES, KEYS, ORIGIN_TYPES, made_runs
from ddl_core.analysis.plot import captions, style
from ddl_core.analysis.plot.canvas import short_titles
from ddl_core.analysis.plot.rows import configuration_name, percent, stacked
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


def points(runs: pd.DataFrame, arms: pd.DataFrame) -> pd.DataFrame:
    """Return one row per arm, number of workers and cause: `BUDGET`.

    Means over the n runs of an arm that say where their time went: means, unlike medians, add up.
    value is the share of an epoch with its evaluation, 0 to 1, low and high the extremes of the
    runs. loss is the share of the throughput of an ideal G workers that the cause takes, negative
    where it takes less than at the base; efficiency is 1 - the sum of losses, that of the arm
    table `arms`. Both are empty at the base itself, loss also for the evaluation, which no
    throughput contains, and where the base does not say where its time went. Beside arms that say
    it, one that does not has a row without a cause, so that the figure can name it. Runs whose
    backward pass waits for communication say nothing, whatever their records hold.
    """
    table = made_runs(runs)
    told = ~table["lost"] & table["spent_compute_s"].notna()
    if not told.any():
        return pd.DataFrame(columns=list(BUDGET)).astype(BUDGET)
    table["panel"] = table["setting"] + SEPARATOR + table["model"].map(style.model_name)
    reached = arms.set_index(KEYS)[["base_world_size", "efficiency"]].to_dict("index")
    rows: list[dict[str, Any]] = []
    sizes: dict[tuple[Any, ...], pd.Series] = {}  # training alone, in shares of its time
    for key, arm in table.groupby(KEYS):  # by world size last: the base of an arm comes first
        known = arm[told[arm.index]]
        shared = arm.iloc[0][[*_SHARED, "panel"]].to_dict() | {
            "n": len(known),
            "failed": int(arm["lost"].sum()),
            "commit": ";".join(sorted(set(arm["commit"]))),
            **reached.get(key, {}),
        }
        if known.empty:
            rows.append(shared)
            continue
        parts = _worker_seconds(known)
        training = parts[TRAINING].mean()
        sizes[key] = training / training.sum()
        base = sizes.get((*key[:-1], shared["base_world_size"]))
        rows += _causes(shared, parts, sizes[key], base)
    return pd.DataFrame(rows, columns=list(BUDGET)).astype(BUDGET)


def _worker_seconds(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per run: worker-seconds per image of each cause."""
    names = [*(f"spent_{name}_s" for name in TRAINING), "evaluation_warm_epoch_s"]
    scale = runs["world_size"].astype(float) / runs["images_per_epoch"].astype(float)
    return runs[names].set_axis(CAUSES, axis=1).mul(scale, axis=0)


def _causes(
    shared: dict[str, Any], parts: pd.DataFrame, training: pd.Series, base: pd.Series | None
) -> list[dict[str, Any]]:
    shares = parts.div(parts.sum(axis=1), axis=0)
    grown = shared["world_size"] != shared["base_world_size"]
    told = grown and base is not None
    losses = training - shared["efficiency"] * base if told else pd.Series(dtype=float)
    return [
        shared
        | {
            "cause": cause,
            "worker_s_per_image": parts[cause].mean(),
            "value": shares[cause].mean(),
            "low": shares[cause].min(),
            "high": shares[cause].max(),
            "loss": losses.get(cause),
            "efficiency": shared["efficiency"] if grown else None,
        }
        for cause in CAUSES
    ]


def draw(points: pd.DataFrame) -> Figure:
    """Return the shares of each arm's epoch, and what they cost against fewer workers."""
    told = points[points["cause"].notna()]
    one = (told["world_size"] == 1).any()
    zero = told["panel"].str.contains("ZeRO stage").any()
    return stacked(
        told,
        "Where does an epoch's time go, and what does that cost at this size?",
        style.SPENT_LOOKS,
        _losses,
        "share of an epoch with its evaluation, mean over workers",
        [
            "From marks in every step, without a profiler; warm epochs only. Communication: what "
            "backward does not hide; transfer is that of the worker that came last, the rest waits "
            "for slower workers.",
            *(["One worker: its framework copies gradients all the same."] if one else []),
            *(["Under ZeRO the update gathers the other workers' weights."] if zero else []),
            f"Beside the bars: parallel efficiency E against the arm's base{_bases(told)}, as in "
            "the figures of efficiency, and what each cause takes of the ideal throughput there "
            "(evaluation is in no throughput).",
            *_silent(points),
        ],
    )


def _silent(points: pd.DataFrame) -> list[str]:
    """Return the sentence on arms none of whose runs says where its time went."""
    panels = list(points["panel"].unique())
    settings = dict(zip(panels, short_titles(panels)[0], strict=True))
    arms = style.with_framework(points[points["cause"].isna()])
    formats = style.formats_differ(arms)
    names = []
    for _, arm in arms.iterrows():
        setting = settings[arm["panel"]]
        own = f" ({setting})" if setting != arm["panel"] else ""
        names.append(configuration_name(arm, formats) + own)
    return [f"There is no such account of: {'; '.join(names)}."] if names else []


def _bases(points: pd.DataFrame) -> str:
    named = captions.counted("G0", points.loc[points["efficiency"].notna(), "base_world_size"])
    return f" ({named})" if named else ""


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
