"""Validation accuracy over the batch size and over epochs.

One file: both figures show the same runs, chosen and named by the same functions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from ddl_core.analysis.arms import (
    ORIGIN_TYPES,
    asks_for_accuracy,
    commits,
    told_apart,
    with_settings,
)
from ddl_core.analysis.paper import SYSTEM, Paper
from ddl_core.analysis.plot import captions, marks, style
from ddl_core.analysis.plot.canvas import drawn_panels, frame, styled
from ddl_core.spec.labels import REPEATS

# Share of the best mean V of a study that "to accuracy" means: the paper names no target.
TARGET_SHARE = 0.9

ARM = ["study", "dataset", "model", "epochs", "optimizer", "schedule", "base_lr", "label"]
SHAPE = ["nodes", "gpus_per_node", "local_batch_size", "accumulation"]  # of a global batch
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
CURVES = {
    "panel": "string",
    "study": "string",
    "optimizer": "string",
    "schedule": "string",
    "label": "string",
    "global_batch_size": "Int64",
    "repeat": "Int64",
    "run_id": "string",
    "diverged": "boolean",
    "epochs": "Int64",
    "epoch": "Int64",
    "value": "float64",
    "mean": "float64",
    **ORIGIN_TYPES,
}

_STATED_ONLY = "No run measured here: only what the paper and others state."
_AXIS_MARGIN = 1.25  # left and right of the first and last batch size
_SIDE_BY_SIDE = 1.05
_OTHERS: dict[str, Any] = {"color": "#999999", "markeredgecolor": "#999999", "markersize": 5,
                           "linestyle": "solid", "linewidth": 1.0, "zorder": 2}  # fmt: skip
_STATED: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "white", "markersize": 6}
_CROSS: dict[str, Any] = {"color": style.UNNAMED_COLOUR, "linestyle": "none", "marker": "x",
                          "markersize": 8, "markeredgewidth": 1.8, "zorder": 5}  # fmt: skip


def made(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of accuracy studies that were made to their end, good or bad.

    Added: ``label`` (what the arm is called), ``commit``, and the columns of `with_settings`.
    """
    ended = runs["status"].isin(["completed", "failed"])
    table = with_settings(runs[asks_for_accuracy(runs) & ended & (runs["work"] == "train")])
    table["diverged"] = table["diverged"].fillna(False).astype(bool)
    table["commit"] = commits(table)
    return table.assign(label=pd.array(_labels(table), dtype="string"))


def _labels(table: pd.DataFrame) -> list[str]:
    """Return what each arm is called: how it learns, and what else sets it apart from those.

    Arms of several batch sizes have one label, and are one line. Where a batch is made in several
    ways, of more ranks or of more micro-batches, each way is told.
    """
    found = pd.Series("", index=table.index, dtype="string")
    for _, runs in table.groupby(["study", "optimizer", "schedule"]):
        apart = told_apart(runs, (*REPEATS, *SHAPE))
        shapes = runs[SHAPE].assign(apart=apart, batch=runs["global_batch_size"])
        if shapes.drop_duplicates().duplicated(["apart", "batch"]).any():
            apart = told_apart(runs, REPEATS)
        found.loc[runs.index] = apart
    names = zip(table["optimizer"], table["schedule"], found, table["differs"], strict=True)
    return [
        style.way_name(optimizer, schedule) + (f", {apart}" if apart else "") + differs
        for optimizer, schedule, apart, differs in names
    ]


def batch_size_points(runs: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return final V over the global batch: ours, a panel per study, then ImageNet by others.

    Columns: `POINTS`. value, sd, low and high are mean, standard deviation and range over the n
    runs that neither failed nor diverged; V of those that diverged is apart. epochs_to_target and
    seconds_to_target are medians over the runs that reached `TARGET_SHARE` of the study's best mean
    V (``reached`` of them); seconds are of training alone, without evaluation.
    """
    table = made(runs)
    ours = [
        _arm(dict(zip([*ARM, "global_batch_size"], key, strict=True)), part)
        for key, part in table.groupby([*ARM, "global_batch_size"], sort=True)
    ]
    measured = pd.DataFrame(ours, columns=list(POINTS)).astype(POINTS)
    for _, study in measured.groupby("study"):
        target = TARGET_SHARE * study["value"].max()
        for index in study.index:
            arm = study.loc[index]
            same = (table[[*ARM, "global_batch_size"]] == arm[[*ARM, "global_batch_size"]]).all(
                axis=1
            )
            for name, value in _to_target(table[same], target).items():
                measured.loc[index, name] = value
    return pd.concat([measured, _stated(paper), _published(paper)], ignore_index=True)


def _arm(key: dict[str, Any], part: pd.DataFrame) -> dict[str, Any]:
    first = part.iloc[0]
    failed = part["status"] == "failed"
    lost = part["diverged"] & ~failed
    good = part.loc[~failed & ~lost, "top1"].dropna()
    batch = int(key["global_batch_size"])
    per_epoch = part["images_per_epoch"].max()
    return key | {
        "panel": f"{style.dataset_name(key['dataset'])}, "
        f"{style.model_name(key['model'])}: {key['study']}",
        "source": "measured",
        "updates": pd.NA if pd.isna(per_epoch) else int(per_epoch) // batch * key["epochs"],
        "n": len(good),
        "diverged": int(lost.sum()),
        "failed": int(failed.sum()),
        "value": good.mean(),
        "sd": good.std(),
        "low": good.min(),
        "high": good.max(),
        "diverged_value": part.loc[lost, "top1"].mean(),
        "hardware": first["hardware"],
        "on_cpu": bool(first["on_cpu"]),
        "commit": ";".join(sorted(set(part["commit"]))),
    }


def numbers(cell: Any) -> np.ndarray:
    """Return the numbers of a cell that lists them."""
    return np.array([] if pd.isna(cell) else str(cell).split(";"), dtype=float)


def _to_target(part: pd.DataFrame, target: float) -> dict[str, Any]:
    epochs, seconds = [], []
    for row in part.to_dict("records"):
        hit = np.flatnonzero(numbers(row["evaluated_top1"]) >= target)
        if hit.size:
            epochs.append(numbers(row["evaluated_epochs"])[hit[0]])
            seconds.append(numbers(row["evaluated_train_s"])[hit[0]])
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
        label=[style.PUBLISHED_NAMES[name] for name in table["source"]],
        dataset="imagenet",
        value=table["value"] / 100,
        note=table["source"],
    )
    return table.reindex(columns=list(POINTS)).astype(POINTS)


def curve_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return V after each epoch of every run, at the smallest and the largest batch of a study.

    Columns: `CURVES`; ``mean`` is over the runs of the same arm, diverged ones left out.
    """
    table = made(runs)
    rows = []
    for _, study in table[table["status"] == "completed"].groupby("study"):
        for batch in sorted({study["global_batch_size"].min(), study["global_batch_size"].max()}):
            for run in study[study["global_batch_size"] == batch].to_dict("records"):
                name = style.dataset_name(run["dataset"])
                shared = {name: run[name] for name in CURVES if name in run}
                shared["panel"] = f"{name}, batch {batch}: {run['study']}"
                points = zip(
                    numbers(run["evaluated_epochs"]), numbers(run["evaluated_top1"]), strict=True
                )
                rows += [shared | {"epoch": int(epoch), "value": v} for epoch, v in points]
    curves = pd.DataFrame(rows, columns=list(CURVES)).astype(CURVES)
    good = curves["value"].where(~curves["diverged"])
    keys = [curves[name] for name in ("panel", "label", "epoch")]
    curves["mean"] = good.groupby(keys).transform("mean")
    return curves


def lost(points: pd.DataFrame) -> pd.DataFrame:
    """Return how much mean V each of our arms loses from its smallest to its largest batch.

    One row per study and way to learn, the smallest loss first in each study. Batches of which all
    runs were lost do not count: ``to_batch`` tells how far it goes.
    """
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    rows = []
    for (study, label), arm in ours.groupby(["study", "label"]):
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
def draw_batch_size(points: pd.DataFrame) -> Figure:
    """Return V over the global batch, ours beside what others state (the paper's Fig. 8b)."""
    ours = points[points["source"] == "measured"]
    theirs = sorted(points.loc[points["source"] == "published", "label"].unique())
    others = {label: _OTHERS | {"marker": style.PUBLISHED_MARKERS[label]} for label in theirs}
    looks = _looks(points[points["source"] != "published"])
    panels = drawn_panels(points)
    none = ours[["value", "diverged_value"]].isna().all(axis=None)
    figure, axes = frame(
        "What becomes of the validation accuracy as the batch grows?",
        panels,
        [2.2] * (len(panels) - 1) + [1.8 if none else 2.6],
        [
            *marks.handles(looks, **_STATED if none else {"markersize": 5}),
            *marks.handles(others),
            *_crosses(ours),
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


@styled
def draw_curves(points: pd.DataFrame) -> Figure:
    """Return V over epochs at the smallest and the largest batch of each study (Fig. 9)."""
    panels, looks = drawn_panels(points), _looks(points)
    figure, axes = frame(
        "How does the validation accuracy grow, at a small and at a large batch?",
        panels,
        [2.2] * ((len(panels) + 1) // 2),
        [*marks.handles(looks, markersize=5), *_crosses(points)],
        [
            "Question of the paper's Fig. 9, which shows a batch of 65,536; it states no value of "
            "the curves.",
            *_curves_measured(points),
            *captions.panels_not_drawn(points, panels),
        ],
    )
    for ax in axes:
        ax.set_ylim(0, 1.05 * points["value"].max() if len(points) else 1)
        ax.set_xlabel("epoch")
        _accuracy_axis(ax)
    drawn = points[points["panel"].isin(panels)]
    for ax, (_, part) in zip(axes, drawn.groupby("panel", sort=False), strict=False):
        ends = part[part["diverged"]].drop_duplicates("run_id", keep="last")
        look = {"estimator": None, "ax": ax, **marks.told_apart("label", looks), "markers": None}
        sns.lineplot(part, x="epoch", y="value", units="run_id", linewidth=0.7, alpha=0.5, **look)
        means = part.drop_duplicates(["label", "epoch"])
        sns.lineplot(means, x="epoch", y="mean", linewidth=2.0, **look)
        _draw_crosses(ax, ends, "epoch", "value", looks)
    return figure


def _looks(points: pd.DataFrame) -> style.Looks:
    """Return how each label looks, in the order of the legend."""
    ways = points[["optimizer", "schedule", "label"]].drop_duplicates()
    schedules = style.listed(ways["schedule"], style.SCHEDULE_NAMES)
    optimizers = style.listed(ways["optimizer"], style.OPTIMIZER_NAMES)
    ways = ways.sort_values(
        ["optimizer", "schedule"],
        key=lambda names: names.map([*optimizers, *schedules].index),
        kind="stable",
    )
    return {
        label: style.way_look(optimizer, schedule, schedules)
        for optimizer, schedule, label in ways.itertuples(index=False)
    }


def _accuracy_axis(ax: Axes) -> None:
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_ylabel("top-1 accuracy V")


def _batch_axis(ax: Axes, batches: pd.Series) -> None:
    """Scale x by powers of two, with a tick at each batch size."""
    sizes = [float(size) for size in sorted(batches.dropna().unique())]
    ax.set_xscale("log", base=2)
    ax.set_xlim(sizes[0] / _AXIS_MARGIN, sizes[-1] * _AXIS_MARGIN)
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.set_xlabel("global batch size (images)")
    _accuracy_axis(ax)


def _draw_ours(ax: Axes, arms: pd.DataFrame, looks: style.Looks) -> None:
    """Draw the means with their range, side by side, and a cross for runs that diverged."""
    number, _ = pd.factorize(arms["label"])
    shift = _SIDE_BY_SIDE ** (number - (arms["label"].nunique() - 1) / 2)
    arms = arms.assign(x=arms["global_batch_size"].astype(float) * shift)
    marks.lines(ax, arms, "x", "label", looks, markersize=5)
    _draw_crosses(ax, arms, "x", "diverged_value", looks)


def _draw_crosses(ax: Axes, table: pd.DataFrame, x: str, y: str, looks: style.Looks) -> None:
    for label, part in table.groupby("label"):
        ax.plot(part[x], part[y], **_CROSS | {"color": looks[str(label)]["color"]})


def _draw_stated(ax: Axes, table: pd.DataFrame, looks: style.Looks) -> None:
    """Draw the paper's values; at one batch the schedules stand side by side."""
    names = style.listed(table["schedule"], style.SCHEDULE_NAMES)
    for row in table.to_dict("records"):
        look = looks[row["label"]] | _STATED
        shift = 1.09 ** (names.index(row["schedule"]) - 1)
        ax.plot(row["global_batch_size"] * shift, row["value"], zorder=4, **look)


def _crosses(table: pd.DataFrame) -> list[Line2D]:
    diverged = table["diverged"].fillna(0).astype(int).sum()
    return marks.handles({"diverged": _CROSS}) if diverged else []


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


def _curves_measured(points: pd.DataFrame) -> list[str]:
    if points.empty:
        return ["Nothing measured here yet."]
    n = points[~points["diverged"]].groupby(["panel", "label"])["run_id"].nunique()
    thick = f"Thick: {captions.averaged(n)} that did not diverge."
    return [
        *([thick] if len(n) else []),
        "Thin: each run, with its own seed; they span a range, no confidence interval.",
        *captions.machines(points),
        captions.commits(points),
    ]
