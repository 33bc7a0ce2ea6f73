"""Where the time of profiled steps went: the table and the figure of it."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.analysis.arms import ARM, ARM_TYPES, ORIGIN_TYPES, commits, with_settings
from ddl_core.analysis.plot import style
from ddl_core.analysis.plot.rows import percent, stacked
from ddl_core.analysis.plot.style import SEPARATOR
from ddl_core.analysis.tables import WINDOW, not_emulated, whole

POINTS = {
    "panel": "string",
    **ARM_TYPES,
    "world_size": "Int64",
    "n": "Int64",
    "cause": "string",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "overlapped": "float64",
    "load_average": "float64",
    "own_load": "Int64",
    **ORIGIN_TYPES,
}
_ARM = ["panel", "study", *ARM, "world_size", "hardware"]


def points(profiles: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per arm, number of workers and share: `POINTS`.

    value is the mean over ranks and runs, 0 to 1, low and high are the extremes of single ranks.
    overlapped, the share of the window in which communication was hidden by compute, is missing
    if any rank could not tell. load_average is that of the minute in which a run began, the
    highest of an arm. Of it own_load is explained by the run that begins, or by one of its study
    that has just ended: compute threads and loader processes of the largest.

    Parameters
    ----------
    profiles
        See `profiles_table`.
    runs
        The same runs, and others.
    """
    runs = not_emulated(whole(runs))
    own = runs["world_size"] * (runs["cpu_threads"] + runs["loader_workers"])
    own = own.groupby(runs["study"]).transform("max")
    settings = with_settings(runs.assign(commit=commits(runs), own_load=own))[
        ["study", "run_id", "library", "setting", "load_average_1min", "own_load", *ORIGIN_TYPES]
    ]
    table = profiles[profiles["of"] == WINDOW].merge(settings, on=["study", "run_id"])
    table["panel"] = table["setting"] + SEPARATOR + table["model"].map(style.model_name)
    rows: list[dict[str, Any]] = []
    for key, arm in table.groupby(_ARM):
        hidden = arm.loc[arm["share"] == "overlapped", "value"]
        shared = dict(zip(_ARM, key, strict=True)) | {
            "n": arm["run_id"].nunique(),
            "overlapped": hidden.mean(skipna=False),
            "load_average": arm["load_average_1min"].max(),
            "own_load": arm["own_load"].iloc[0],
            "on_cpu": arm["on_cpu"].iloc[0],
            "commit": ";".join(sorted(set(arm["commit"]))),
        }
        for cause, part in arm[arm["share"] != "overlapped"].groupby("share", sort=False):
            value = {"value": part["value"].mean(), "low": part["value"].min()}
            rows.append({**shared, "cause": cause, **value, "high": part["value"].max()})
    return pd.DataFrame(rows, columns=list(POINTS)).astype(POINTS)


def draw(points: pd.DataFrame) -> Figure:
    """Return the shares of the watched steps, and what communication was hidden."""
    return stacked(
        points,
        "What was each worker doing in the steps that a profiler watched?",
        style.SHARE_LOOKS,
        _beside,
        "share of the watched steps, mean over workers",
        [
            "torch.profiler; each moment counts once. Transfer and waiting: communication with "
            "nothing else going on; hidden: the rest of it, a part of compute. On a CPU compute is "
            "operators of the training thread, and idle is whatever the profiler does not see, "
            "Python and other programs included.",
            *_others(points),
        ],
    )


def _others(points: pd.DataFrame) -> list[str]:
    """Return the sentence on what else kept the machine busy, where its load says so."""
    arms = points.drop_duplicates(_ARM)
    busy = arms[arms["load_average"] > arms["own_load"]]
    if busy.empty:
        return []
    load = " to ".join(sorted({f"{busy['load_average'].agg(end):.1f}" for end in ("min", "max")}))
    return [
        f"The machine had other work as well: a load average of {load} when "
        f"{len(busy)} of {len(arms)} arms began, of which runs of the study explain at most "
        f"{busy['own_load'].max()}."
    ]


def _beside(arm: pd.DataFrame) -> list[str]:
    first = arm.iloc[0]
    hidden = "unknown" if pd.isna(first["overlapped"]) else percent(first["overlapped"])
    return [f"n = {first['n']}", f"hidden: {hidden}"]
