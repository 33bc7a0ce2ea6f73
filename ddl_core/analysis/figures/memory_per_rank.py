"""Peak memory of a rank under each strategy, beside what its share of the training state takes."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ddl_core.analysis.arms import ARM_TYPES, ORIGIN_TYPES, made_runs
from ddl_core.analysis.figures import study_arms
from ddl_core.analysis.figures.over_workers import stack
from ddl_core.analysis.plot import captions, marks, style
from ddl_core.analysis.plot.canvas import styled
from ddl_core.analysis.plot.rows import best_rows, ranked_rows
from ddl_core.analysis.plot.scales import three_digits

POINTS = {
    "panel": "string",
    **ARM_TYPES,
    "world_size": "Int64",
    "label": "string",
    "n": "Int64",
    "failed": "Int64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "state": "float64",
    "throughput": "float64",
    **ORIGIN_TYPES,
}

GIB = 2**30
_BYTES = 4  # of a number in fp32, in which all strategies keep what they train
_STATE: dict[str, Any] = {"marker": "|", "markersize": 13, "markeredgewidth": 2.0}


def state_bytes(parameters: float, shards: int, ranks: int, momentum: bool) -> float:
    """Return what weights, gradients and momenta take on one of several ranks, bytes.

    Each of the three is four bytes a parameter. Momenta are divided among ranks from one kind of
    shards on, gradients from two, weights from three (Rajbhandari et al. 2020, ZeRO, section 5).
    Buffers and second copies of a framework are not in it.
    """
    shared = [shards >= 3, shards >= 2] + ([shards >= 1] if momentum else [])
    return _BYTES * parameters * sum(1 / ranks if part else 1 for part in shared)


def points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per arm of each study whose runs tell their memory: `POINTS`.

    An arm is as in `comparison`. value is the most memory of any rank in a warm epoch, GiB, over
    the arm's n runs; low is that of the run with the least. state is `state_bytes` in GiB, missing
    for networks whose size no record tells. throughput is the geometric mean, images/s.
    """
    made = made_runs(runs)
    made = made[made["max_memory_bytes"].notna() | made["lost"]]
    told = made["strategy"].where(made["max_memory_bytes"].notna())
    made = made[told.groupby(made["study"]).transform("nunique") > 1]
    tables = [pd.DataFrame(columns=list(POINTS))]
    for _, study in made.groupby("study"):
        arms = [arm for _, arm in study.groupby(study_arms.KEY, dropna=False, sort=False)]
        firsts = pd.concat([arm.head(1) for arm in arms])
        reached = pd.DataFrame(list(map(_reached, arms)), index=firsts.index)
        table = firsts.drop(columns=list(reached), errors="ignore").join(reached)
        panel = f"{firsts['study'].iloc[0]}: {study_arms.common(firsts)}"
        tables.append(table.assign(label=study_arms.names(firsts), panel=panel))
    return stack(tables, POINTS).sort_values(
        ["panel", "value", "label"], ignore_index=True, kind="stable"
    )


def _reached(arm: pd.DataFrame) -> dict[str, Any]:
    first, kept = arm.iloc[0], arm[~arm["lost"]]
    memory = kept["max_memory_bytes"].astype("float64") / GIB
    state = np.nan
    # FSDP keeps whole gradients until the last micro-batch.
    parts = first["strategy"] != "fsdp" or first["accumulation"] == 1
    if pd.notna(first["parameters"]) and first["optimizer"] == "sgd" and parts:
        state = state_bytes(
            first["parameters"], _shards(first), first["world_size"], first["momentum"] > 0
        )
    return {
        "n": len(kept),
        "failed": int(arm["lost"].sum()),
        "value": memory.max(),
        "low": memory.min(),
        "high": memory.max(),
        "state": state / GIB,
        "throughput": np.exp(np.log(kept["value"].astype("float64")).mean()),
    }


def _shards(run: pd.Series) -> int:
    """Return how many of momenta, gradients and weights, in this order, ranks share."""
    return 3 if run["strategy"] == "fsdp" else int(run["deepspeed_zero_stage"])


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return a row per arm, the least memory on top."""
    points = style.with_framework(points)
    drawn = best_rows(points, pd.Series(False, index=points.index))
    looks = style.strategy_looks(drawn["framework"])
    figure, panels = ranked_rows(
        "Which strategy fits: how much memory does a rank need at its peak?",
        drawn,
        [
            *marks.handles(style.strategies_named(looks)),
            *marks.handles({"weights, gradients, momenta: its share": _STATE}, color="#555555"),
        ],
        _caption(points),
        {"n": _count, "GiB": _gib, "images/s": _rate},
        "peak memory of a rank (GiB)",
    )
    for ax, table in panels:
        ax.plot(table["state"], table["row"], linestyle="none", color="#555555", **_STATE)
        marks.points(ax, table, looks, {"linewidth": 1.2}, markersize=5, zorder=5, capsize=0.3)
        ax.set_xlim(left=0)
    return figure


def _count(row: pd.Series) -> str:
    return f"{row['n']}" + (f", {row['failed']} lost" if row["failed"] else "")


def _gib(row: pd.Series) -> str:
    return f"{row['value']:.2f}" if row["n"] else "none"


def _rate(row: pd.Series) -> str:
    return three_digits(row["throughput"]) if row["n"] else ""


def _caption(points: pd.DataFrame) -> list[str]:
    measured = points[points["n"] > 0]
    if measured.empty:
        return ["No study measured here has told the memory of two strategies."]
    how = {
        True: "On the CPU: main memory above what the process had before there was a network, "
        "with what the allocator keeps of what was freed.",
        False: "On a GPU: what torch's tensors took.",
    }
    return [
        "The most of any rank in warm training epochs, activations, buffers and batches included; "
        "of several runs the most, bars down to the least.",
        *[how[bool(on_cpu)] for on_cpu in measured["on_cpu"].unique()],
        "Grey marks: arithmetic, four bytes a number, momenta shared from ZeRO's stage 1 on, "
        "gradients from 2, weights from 3 and under FSDP.",
        *captions.lost(points),
        *captions.machines(measured),
        captions.commits(measured),
    ]
