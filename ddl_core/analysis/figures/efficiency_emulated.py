"""Efficiency over the nodes of a cluster in a box: a panel per rate of its links.

The only figure that shows emulated runs, and it shows no other ones.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ddl_core.analysis import estimates
from ddl_core.analysis.arms import (
    ARM_TYPES,
    ORIGIN_TYPES,
    VALUE,
    commits,
    told_apart,
    with_settings,
)
from ddl_core.analysis.figures.over_workers import stack
from ddl_core.analysis.plot import captions, marks, scales, style
from ddl_core.analysis.plot.canvas import drawn_panels, frame, styled
from ddl_core.analysis.tables import is_emulated
from ddl_core.spec.labels import REPEATS

POINTS = {
    "panel": "string",
    **ARM_TYPES,
    "line": "string",
    "box_link_mbit": "float64",
    "box_step_ms": "float64",
    "box_shrink": "float64",
    "world_size": "Int64",
    "n": "Int64",
    "failed": "Int64",
    "unfaithful": "Int64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    **ORIGIN_TYPES,
}
# Told by the panel, by the axis, or by nothing: one step is like another.
_NOT_TOLD = ("library", "strategy", "nodes", "box_link_mbit", "train_images", "epochs", *REPEATS)
_SERIES = ["study", "hardware", "setting", "line"]
# Links and the length of a run divide no series: what is drawn is a ratio over them.
_SHARED = {"box_link_mbit": 0.0, "train_images": pd.NA, "epochs": 0}
_NO_DELAYS = {"box_straggler": 1.0, "box_jitter": 0.0}
_NOT_SCALED = (
    "Horovod lies above PyTorch-DDP only because the small first bucket of a real DDP is missing, "
    "so that its last message is larger, and because Horovod's negotiation is not scaled."
)
_UNDISTURBED = ["study", "hardware", "strategy", "undisturbed"]
_LINES: list[Any] = [(0, (4, 1.5)), (0, (1, 1.5)), *style.SPARE_LINES]


def points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return parallel efficiency over emulated nodes: `POINTS`.

    E = (throughput of G ranks / G) / throughput of one, of the same arm; low and high are its 95 %
    interval over repeats. One rank sends nothing: whatever the rate of its link, it is the base of
    all rates; and an arm of delayed ranks that has none has that of the same arm without delays.
    Runs that were unfaithful are counted and give no value.
    """
    made = _made(runs)
    rows = []
    for _, arm in made.groupby(_SERIES, sort=True):
        alone = arm[arm["world_size"] == 1]
        base = alone if len(alone) else _without_delays(made, arm.iloc[0])
        for _, panel in arm[arm["world_size"] > 1].groupby("box_link_mbit"):
            own = [part for _, part in panel.groupby("world_size")]
            rows += [_row(part, base, panel) for part in ([alone] if len(alone) else []) + own]
    table = pd.DataFrame(rows, columns=list(POINTS))
    order = ["study", "box_link_mbit", "line", "world_size"]
    return stack([table.sort_values(order, ascending=[True, False, True, True])], POINTS)


def _made(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the emulated runs that have ended, with what pools them and what they are called."""
    ended = runs["status"].isin(["completed", "failed"]) & (runs["world_size"] > 0)
    emulated = runs[is_emulated(runs) & ended]
    undisturbed = with_settings(emulated.assign(**_SHARED, **_NO_DELAYS))
    made = with_settings(emulated.assign(**_SHARED)).assign(
        box_link_mbit=emulated["box_link_mbit"],
        commit=commits(emulated),
        undisturbed=undisturbed["setting"],
    )
    apart = told_apart(emulated, _NOT_TOLD)
    made["line"] = [
        ", ".join(filter(None, (style.strategy_name(strategy), label))) + differs
        for strategy, label, differs in zip(made["strategy"], apart, made["differs"], strict=True)
    ]
    faithful = (made["status"] == "completed") & made["unfaithful"].isna()
    return made.assign(value=made[VALUE].where(faithful))


def _without_delays(made: pd.DataFrame, delayed: pd.Series) -> pd.DataFrame:
    """Return the runs of one rank that are like `delayed`, but for its delays."""
    alike = (made[_UNDISTURBED] == delayed[_UNDISTURBED]).all(axis=1)
    without = (made[list(_NO_DELAYS)] == pd.Series(_NO_DELAYS)).all(axis=1)
    return made[alike & without & (made["world_size"] == 1)]


def _row(runs: pd.DataFrame, base: pd.DataFrame, panel: pd.DataFrame) -> dict[str, Any]:
    first, ranks = runs.iloc[0], int(runs["world_size"].iloc[0])
    mbit = panel["box_link_mbit"].iloc[0]
    known, bases = (part["value"].dropna().to_numpy(float) for part in (runs, base))
    row = {name: first[name] for name in POINTS if name in first} | {
        "panel": f"{mbit:g} Mbit/s ({first['study']})",
        "box_link_mbit": mbit,
        "n": len(known),
        "failed": int((runs["status"] == "failed").sum()),
        "unfaithful": int(runs["unfaithful"].notna().sum()),
        "commit": ";".join(sorted(set(runs["commit"]))),
        **dict.fromkeys(("value", "low", "high"), np.nan),
    }
    if ranks == 1 and len(known):
        row["value"] = 1.0
    elif len(known) and len(bases):
        found = estimates.scaled(estimates.unpaired_ratio(known, bases), 1 / ranks)
        row |= {"value": found.ratio, "low": found.low, "high": found.high}
    return row


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return E over emulated nodes, in the colours of the frameworks, dashed."""
    panels, looks = drawn_panels(points), _looks(points[points["value"].notna()])
    legend = marks.handles({f"{name}, emulated": look for name, look in looks.items()})
    figure, axes = frame(
        "EMULATED: how efficient are more nodes, and slower links?",
        panels,
        [2.0] * -(-len(panels) // 2),
        legend,
        [*_caption(points), *captions.panels_not_drawn(points, panels)],
    )
    for name, ax in zip(panels, axes, strict=True):
        part = points[(points["panel"] == name) & points["value"].notna()]
        scales.worker_axis(ax, part["world_size"])
        ax.set_xlabel("emulated nodes G")
        ax.set_ylabel("parallel efficiency E")
        ax.set_ylim(0, 1.1)
        ax.axhline(1, **style.IDEAL)
        beside = scales.side_by_side(ax, part["world_size"], part["line"], list(looks))
        part = part.assign(at=beside)
        marks.lines(ax, part, "at", "line", looks, markersize=5)
        for row in part[_single(part)].to_dict("records"):
            look = {name: looks[row["line"]][name] for name in ("color", "marker")}
            ax.plot(row["at"], row["value"], markersize=5, markerfacecolor="white", zorder=6,
                    linestyle="none", **look)  # fmt: skip
    return figure


def _single(points: pd.DataFrame) -> "pd.Series[bool]":
    """Say which values rest on a single run; the base is 1 by definition."""
    return (points["n"] == 1) & (points["world_size"] > 1)


def _looks(points: pd.DataFrame) -> style.Looks:
    """Return how each line looks: its framework's colour and mark, dashes of its own."""
    table = style.with_framework(points)
    frameworks = style.strategy_looks(table["framework"])
    pairs = table[["framework", "line"]].drop_duplicates().sort_values("line")
    looks: style.Looks = {}
    for framework, look in frameworks.items():
        own = pairs.loc[pairs["framework"] == framework, "line"]
        for number, line in enumerate(own):
            looks[line] = look | {"linestyle": _LINES[number % len(_LINES)]}
    return looks


def _is_lent(points: pd.DataFrame) -> bool:
    """Say whether a line that is drawn has its base from another."""
    drawn = points[points["value"].notna()]
    return not set(drawn["line"]) <= set(drawn.loc[drawn["world_size"] == 1, "line"])


def _caption(points: pd.DataFrame) -> list[str]:
    drawn = points[points["n"] > 0]
    sentences = [
        "Nothing here was measured on a cluster: nodes are network namespaces of one machine, "
        "links are shaped, compute sleeps, and the real frameworks send real bytes "
        "(docs/emulation.md).",
        "E = (throughput / G) / throughput of one rank of the same arm"
        f"{', of delayed ranks: of one without delays' if _is_lent(drawn) else ''}.",
    ]
    if drawn.empty:
        return sentences
    steps = captions.counted("", drawn["box_step_ms"])
    smaller = captions.counted("", drawn["box_shrink"])
    alone = points["world_size"] == 1  # the base, which stands in each panel
    once = pd.concat([points[~alone], points[alone].drop_duplicates(["study", "line"])])
    unfaithful = once["unfaithful"].sum()
    baseless = drawn.groupby("line")["value"].count().loc[lambda known: known == 0].index
    known = drawn["low"].notna().any()
    return [
        *sentences,
        f"Each rank computes {steps} ms a step; gradients are ResNet50's, {smaller} times smaller.",
        f"Emulated: {captions.averaged(drawn['n'], 'geometric mean')}, warm epochs only.",
        *(["Bars: 95 % interval of the ratio (t on logs, over runs)."] if known else []),
        *(["Open marks: one run, no interval."] if _single(drawn).any() else []),
        *([_NOT_SCALED] if {"ddp", "horovod"} <= set(drawn["strategy"]) else []),
        *([f"Unfaithful, not drawn: {unfaithful} runs."] if unfaithful else []),
        *[f"Without a run of one rank, not drawn: {name}." for name in baseless],
        *captions.lost(points),
        *captions.machines(drawn),
        captions.commits(drawn),
    ]
