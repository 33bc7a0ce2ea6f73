"""Validation accuracy over the batch size, ours beside what the paper and others state."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ddl_core.analysis.arms import ORIGIN_TYPES
from ddl_core.analysis.figures import accuracy, study_arms
from ddl_core.analysis.paper import SYSTEM, Paper
from ddl_core.analysis.plot import captions, marks, style
from ddl_core.analysis.plot.canvas import drawn_panels, frame, styled

# Share of a panel's best mean V that "to accuracy" means: the paper names no target.
TARGET_SHARE = 0.9

ARM = ["study", "dataset", "model", "epochs", "optimizer", "schedule", "base_lr"]
POINTS = {
    "panel": "string",
    "source": "string",
    "study": "string",
    "dataset": "string",
    "model": "string",
    "epochs": "Int64",
    "optimizer": "string",
    "schedule": "string",
    "base_lr": "float64",
    "label": "string",
    "global_batch_size": "Int64",
    "updates": "Int64",
    "n": "Int64",
    "diverged": "Int64",
    "failed": "Int64",
    "value": "float64",
    "sd": "float64",
    "low": "float64",
    "high": "float64",
    "diverged_value": "float64",
    "target": "float64",
    "reached": "Int64",
    "epochs_to_target": "float64",
    "seconds_to_target": "float64",
    "approx": "string",
    "statement": "string",
    "printed": "string",
    "place": "string",
    "note": "string",
    **ORIGIN_TYPES,
}
_STATED_ONLY = "No run measured here: only what the paper and others state."
_AXIS_MARGIN = 1.25  # left and right of the first and last batch size
_SIDE_BY_SIDE = 1.05
_OTHERS: dict[str, Any] = {"color": "#999999", "markeredgecolor": "#999999", "markersize": 5,
                           "linestyle": "solid", "linewidth": 1.0, "zorder": 2}  # fmt: skip
_STATED: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "white", "markersize": 6}


def points(runs: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return final V over the global batch: ours, a panel per study, then ImageNet by others.

    Columns: `POINTS`. A row of ours is the runs that agree in every field but seed and repeat, and
    in what their records tell of machine and software. value, sd, low and high are mean, standard
    deviation and range over the n runs that neither failed nor diverged; V of those that diverged
    is apart. epochs_to_target and seconds_to_target are medians over the runs that reached
    `TARGET_SHARE` of the best mean V of the same network and data in the study (``reached`` of
    them); seconds are of training alone, without evaluation.
    """
    arms = [arm for _, arm in accuracy.made(runs).groupby(study_arms.KEY, dropna=False)]
    rows = [_row(arm) for arm in arms]
    best = pd.DataFrame(rows, columns=["panel", "value"]).groupby("panel")["value"].max()
    for row, arm in zip(rows, arms, strict=True):
        row |= _to_target(arm, TARGET_SHARE * best[row["panel"]])
    measured = pd.DataFrame(rows, columns=list(POINTS)).astype(POINTS)
    measured = measured.sort_values([*ARM, "label", "global_batch_size"])
    return pd.concat([measured, _stated(paper), _published(paper)], ignore_index=True)


def _row(arm: pd.DataFrame) -> dict[str, Any]:
    first = arm.iloc[0]
    failed = arm["status"] == "failed"
    lost = arm["diverged"] & ~failed
    good = arm.loc[~failed & ~lost, "top1"].dropna()
    batch = int(first["global_batch_size"])
    per_epoch = arm["images_per_epoch"].max()
    return first[[*ARM, "label", "hardware"]].to_dict() | {
        "panel": f"{style.dataset_name(first['dataset'])}, "
        f"{style.model_name(first['model'])}: {first['study']}",
        "source": "measured",
        "global_batch_size": batch,
        "updates": pd.NA if pd.isna(per_epoch) else int(per_epoch) // batch * first["epochs"],
        "n": len(good),
        "diverged": int(lost.sum()),
        "failed": int(failed.sum()),
        "value": good.mean(),
        "sd": good.std(),
        "low": good.min(),
        "high": good.max(),
        "diverged_value": arm.loc[lost, "top1"].mean(),
        "on_cpu": bool(first["on_cpu"]),
        "commit": ";".join(sorted(set(arm["commit"]))),
    }


def _to_target(part: pd.DataFrame, target: float) -> dict[str, Any]:
    epochs, seconds = [], []
    for row in part.to_dict("records"):
        hit = np.flatnonzero(accuracy.numbers(row["evaluated_top1"]) >= target)
        if hit.size:
            epochs.append(accuracy.numbers(row["evaluated_epochs"])[hit[0]])
            seconds.append(accuracy.numbers(row["evaluated_train_s"])[hit[0]])
    return {
        "target": target,
        "reached": len(epochs),
        "epochs_to_target": np.median(epochs) if epochs else np.nan,
        "seconds_to_target": np.median(seconds) if seconds else np.nan,
    }


IMAGENET_PANEL = "ImageNet, ResNet50 unless named, 90 epochs where stated: by others"


def _stated(paper: Paper) -> pd.DataFrame:
    table = paper.accuracy.assign(
        panel=IMAGENET_PANEL,
        source="stated",
        dataset="imagenet",
        epochs=90,
        optimizer="sgd",
        base_lr=0.025,
        value=paper.accuracy["value"] / 100,
        hardware=SYSTEM,
    )
    table["label"] = [style.way_name("sgd", schedule) for schedule in table["schedule"]]
    return table.reindex(columns=list(POINTS)).astype(POINTS)


def _published(paper: Paper) -> pd.DataFrame:
    """Return the series of others with two or more batch sizes and a source that was read."""
    table = paper.published
    table = table[table["evidence"].isin(["source_read", "quoted"])]
    sizes = table.groupby("source")["global_batch_size"].transform("nunique")
    table = table[sizes > 1]
    table = table.assign(
        panel=IMAGENET_PANEL,
        source="published",
        label=[style.PUBLISHED_NAMES.get(name, name) for name in table["source"]],
        dataset="imagenet",
        value=table["value"] / 100,
        note=table["source"],
    )
    return table.reindex(columns=list(POINTS)).astype(POINTS)


def lost(points: pd.DataFrame) -> pd.DataFrame:
    """Return how much mean V each of our arms loses from its smallest to its largest batch.

    One row per panel and way to learn, the smallest loss first in each study. Batches of which all
    runs were lost do not count: ``to_batch`` tells how far it goes.
    """
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    rows = []
    for (study, _, label), arm in ours.groupby(["study", "panel", "label"]):
        arm = arm.sort_values("global_batch_size")
        first, last = arm.iloc[0], arm.iloc[-1]
        rows.append(
            {
                "study": study,
                "label": label,
                "from_batch": first["global_batch_size"],
                "to_batch": last["global_batch_size"],
                "first": first["value"],
                "last": last["value"],
                "lost": first["value"] - last["value"],
            }
        )
    columns = ["study", "label", "from_batch", "to_batch", "first", "last", "lost"]
    return pd.DataFrame(rows, columns=columns).sort_values(["study", "lost"], ignore_index=True)


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return V over the global batch, ours beside what others state (the paper's Fig. 8b)."""
    ours = points[points["source"] == "measured"]
    theirs = sorted(points.loc[points["source"] == "published", "label"].unique())
    others = {
        label: _OTHERS | {"marker": style.PUBLISHED_MARKERS.get(label, style.SPARE_MARKERS[0])}
        for label in theirs
    }
    looks = accuracy.looks(points[points["source"] != "published"])
    panels = drawn_panels(points)
    none = ours[["value", "diverged_value"]].isna().all(axis=None)
    figure, axes = frame(
        "What becomes of the validation accuracy as the batch grows?",
        panels,
        [2.2] * (len(panels) - 1) + [1.8 if none else 2.6],
        [
            *marks.handles(looks, **_STATED if none else {"markersize": 5}),
            *marks.handles(others),
            *accuracy.crosses(ours),
        ],
        [
            "Question of the paper's Fig. 8b.",
            *_measured(ours),
            "Open marks: values that the paper states; its curves were not digitised. Light marks: "
            "other sources, see data/published. The panels differ in data, network and length: "
            "compare shapes, not values.",
            *captions.panels_not_drawn(points, panels),
        ],
        note=_STATED_ONLY if none else "",
    )
    for name, ax in zip(panels, axes, strict=True):
        part = points[points["panel"] == name]
        _batch_axis(ax, part["global_batch_size"])
        _draw_ours(ax, part[part["source"] == "measured"], looks)
        _draw_stated(ax, part[part["source"] == "stated"], looks)
        for label, series in part[part["source"] == "published"].groupby("label"):
            sns.lineplot(series, x="global_batch_size", y="value", estimator=None, ax=ax,
                         **others[str(label)])  # fmt: skip
    return figure


def _batch_axis(ax: Axes, batches: pd.Series) -> None:
    """Scale x by powers of two, with a tick at each batch size."""
    sizes = [float(size) for size in sorted(batches.dropna().unique())]
    ax.set_xscale("log", base=2)
    ax.set_xlim(sizes[0] / _AXIS_MARGIN, sizes[-1] * _AXIS_MARGIN)
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.set_xlabel("global batch size (images)")
    accuracy.accuracy_axis(ax)


def _draw_ours(ax: Axes, arms: pd.DataFrame, looks: style.Looks) -> None:
    """Draw the means with their range, side by side, and a cross for runs that diverged."""
    number, _ = pd.factorize(arms["label"])
    shift = _SIDE_BY_SIDE ** (number - (arms["label"].nunique() - 1) / 2)
    arms = arms.assign(x=arms["global_batch_size"].astype(float) * shift)
    marks.lines(ax, arms, "x", "label", looks, markersize=5)
    accuracy.draw_crosses(ax, arms, "x", "diverged_value", looks)


def _draw_stated(ax: Axes, table: pd.DataFrame, looks: style.Looks) -> None:
    """Draw the paper's values; at one batch the schedules stand side by side."""
    names = style.listed(table["schedule"], style.SCHEDULE_NAMES)
    for row in table.to_dict("records"):
        look = looks[row["label"]] | _STATED
        shift = 1.09 ** (names.index(row["schedule"]) - 1)
        ax.plot(row["global_batch_size"] * shift, row["value"], zorder=4, **look)


def _measured(ours: pd.DataFrame) -> Sequence[str]:
    done = ours[ours["n"] > 0]
    lost = [
        f"{name.capitalize()}: {int(ours[name].sum())} runs"
        + (" (crosses: their V)." if name == "diverged" else ".")
        for name in ("diverged", "failed")
        if ours[name].sum()
    ]
    if done.empty:
        return lost
    bars = "; bars: the range of these runs, which is no confidence interval"
    return [
        f"Measured: {captions.averaged(done['n'])}, each with its own seed"
        f"{bars if (done['n'] > 1).any() else ''}.",
        *lost,
        *captions.machines(done),
        captions.commits(done),
    ]
