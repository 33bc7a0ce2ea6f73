"""Seconds of training to one accuracy over the number of workers, and what is stated of it."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddl_core.analysis.arms import ARM_TYPES, KEYS, ORIGIN_TYPES, made_runs
from ddl_core.analysis.figures.accuracy import numbers
from ddl_core.analysis.figures.over_workers import stack, with_model
from ddl_core.analysis.plot import captions, labels, marks, scales, style
from ddl_core.analysis.plot.canvas import drawn_panels, frame, styled
from ddl_core.analysis.plot.style import SEPARATOR
from ddl_core.analysis.seed_papers import PAPERS, SeedPapers

# Shares of the test images, absolute: a share of a study's best would be another in each study.
# The papers name none. The second is for the part of the data that a laptop trains on.
TARGETS = {"cifar10": 0.9, "fashion_mnist": 0.6}

POINTS = {
    "panel": "string",
    **ARM_TYPES,
    "dataset": "string",
    "local_batch_size": "Int64",
    "world_size": "Int64",
    "target": "float64",
    "n": "Int64",
    "reached": "Int64",
    "failed": "Int64",
    "epochs": "float64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "stated_workers": "Int64",
    **ORIGIN_TYPES,
}
_STATED: dict[str, Any] = {"color": style.UNNAMED_COLOUR, "linestyle": (0, (4, 2)), "linewidth": 1}


def points(runs: pd.DataFrame, seeds: SeedPapers) -> pd.DataFrame:
    """Return a row per arm and number of workers, where two numbers were evaluated: `POINTS`.

    value is the median of the seconds that n runs trained to `TARGETS`, evaluations not counted,
    low and high the least and the most; epochs is the median of theirs. All are missing where not
    every run came so far (``reached``): the others' median would be that of the lucky ones.
    stated_workers is the number of CPUs above which little is said to be gained.
    """
    made = made_runs(runs)
    made = made[made["dataset"].isin(TARGETS) & made["evaluated_top1"].notna()]
    made["panel"] = made["loader"].map(style.loader_name) + SEPARATOR + with_model(made)
    sizes = made.groupby([name for name in KEYS if name != "world_size"])["world_size"]
    rows = [_row(arm) for _, arm in made[sizes.transform("nunique") > 1].groupby(KEYS)]
    table = pd.DataFrame(rows, columns=list(POINTS))
    table["stated_workers"] = np.where(
        table["on_cpu"].astype(bool), seeds.stated("M02")["world_size"], pd.NA
    )
    return stack([table], POINTS)


def _row(arm: pd.DataFrame) -> dict[str, Any]:
    first, known = arm.iloc[0].to_dict(), arm[~arm["lost"]]
    target = TARGETS[first["dataset"]]
    hits = [_reached(run, target) for run in known.to_dict("records")]
    found = [hit for hit in hits if hit]
    seconds = [hit[1] for hit in found] if found and len(found) == len(hits) else [np.nan]
    return first | {
        "target": target,
        "n": len(known),
        "reached": len(found),
        "failed": int(arm["lost"].sum()),
        "epochs": np.median([hit[0] for hit in found]) if np.isfinite(seconds).all() else np.nan,
        "value": np.median(seconds),
        "low": min(seconds),
        "high": max(seconds),
        "commit": ";".join(sorted(set(known["commit"]))),
    }


def _reached(run: dict[str, Any], target: float) -> tuple[float, float] | None:
    """Return epochs and seconds to the first evaluation that is as good as `target`."""
    hit = np.flatnonzero(numbers(run["evaluated_top1"]) >= target)
    if not hit.size:
        return None
    first = hit[0]
    return numbers(run["evaluated_epochs"])[first], numbers(run["evaluated_train_s"])[first]


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return the seconds to accuracy over workers; a panel per setting, network and loader."""
    points = style.with_framework(points)
    panels, looks = drawn_panels(points), style.strategy_looks(points["framework"])
    figure, axes = frame(
        "How long do more workers train to one accuracy?",
        panels,
        [2.2] * len(panels),
        marks.handles(style.strategies_named(looks), markersize=5),
        _caption(points, panels),
    )
    for name, ax in zip(panels, axes, strict=True):
        part = points[points["panel"] == name]
        scales.rate_axis(ax, part[["value", "low", "high"]].stack())
        ax.set_ylabel("seconds of training")
        stated = part["stated_workers"].dropna().unique()
        scales.worker_axis(ax, [*part["world_size"], *stated])
        _draw_stated(ax, stated)
        known = part[part["value"].notna()]
        beside = scales.side_by_side(ax, known["world_size"], known["framework"], list(looks))
        marks.lines(ax, known.assign(at=beside), "at", "framework", looks, markersize=5)
    return figure


def _draw_stated(ax: Axes, stated: np.ndarray) -> None:
    for workers in stated:
        ax.axvline(float(workers), **_STATED)
        place = (float(workers), 0.95)
        coords = ax.get_xaxis_transform()
        labels.write(ax, f"{workers} CPUs, stated [M5]", place, (-4, 0), "right", coords=coords)


def _caption(points: pd.DataFrame, panels: list[str]) -> list[str]:
    if points.empty:
        return ["Nothing measured here has evaluated at two numbers of workers."]
    known = points[points["n"] > 0]
    targets = known[["dataset", "target"]].drop_duplicates().itertuples(index=False)
    named = ", ".join(f"{style.dataset_name(data)}: {share:.0%}" for data, share in targets)
    short = known[known["reached"] < known["n"]]
    missed = [
        f"{style.strategy_name(row['framework'])} at {row['world_size']} "
        f"({row['reached']} of {row['n']})"
        for row in short.to_dict("records")
    ]
    lost = captions.lost(points)
    return [
        f"To the first evaluation with {named} of the test images right, a target of ours: "
        f"{PAPERS['mahon2020']} name none. Evaluations are not counted; the first "
        "epoch is, which compiles and warms up. Median of "
        f"{captions.counted('n', known['n'])} runs, bars: the range.",
        *([f"Not every run came so far: {'; '.join(missed)}."] if missed else []),
        *([f"Dashed: {PAPERS['mahon2020']} saw little gain above 56 CPUs; [M5]: see "
           "docs/reading_the_seeds.md."] if points["stated_workers"].notna().any() else []),
        *lost,
        *captions.machines(known),
        captions.commits(known),
        *captions.panels_not_drawn(points, panels),
    ]  # fmt: skip
