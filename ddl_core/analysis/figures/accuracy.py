"""Validation accuracy: over the batch size, over epochs, and the schedules behind it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from ddl_core.analysis.arms import asks_for_accuracy, commits, with_settings
from ddl_core.analysis.paper import SYSTEM, Paper
from ddl_core.analysis.plot import captions, style
from ddl_core.analysis.plot.canvas import frame, styled
from ddl_core.spec.run import RunSpec
from ddl_core.spec.schedules import learning_rate

# Share of the best mean V of a study that "to accuracy" means: the paper names no target.
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
    "hardware": "string",
    "on_cpu": "boolean",
    "commit": "string",
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
    "hardware": "string",
    "on_cpu": "boolean",
    "commit": "string",
}

MOST_PANELS = 6
NOTHING = "nothing measured here yet"
_AXIS_MARGIN = 1.25  # left and right of the first and last batch size
_SIDE_BY_SIDE = 1.05


def made(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of accuracy studies that were made to their end, good or bad.

    Added: ``label`` (what the arm is called), ``commit``, and the columns of `with_settings`.
    """
    ended = runs["status"].isin(["completed", "failed"])
    table = with_settings(runs[asks_for_accuracy(runs) & ended & (runs["work"] == "train")])
    table["diverged"] = table["diverged"].fillna(False).astype(bool)
    table["commit"] = commits(table)
    rates = table.groupby(["study", "optimizer", "schedule"])["base_lr"].transform("nunique")
    names = [
        style.way_name(optimizer, schedule) + (f", rate {rate:g}" if several > 1 else "")
        for optimizer, schedule, rate, several in zip(
            table["optimizer"], table["schedule"], table["base_lr"], rates, strict=True
        )
    ]
    return table.assign(label=pd.array(names, dtype="string"))


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
        "panel": f"{style.DATASET_NAMES.get(key['dataset'], key['dataset'])}, "
        f"{style.MODEL_NAMES[key['model']]}: {key['study']}",
        "source": "measured",
        "label": first["label"],
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
                name = style.DATASET_NAMES.get(run["dataset"], run["dataset"])
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


def schedule_points(paper: Paper) -> pd.DataFrame:
    """Return the learning rate over epochs as the paper trained on 1024 GPUs (its Fig. 8a).

    Four values an epoch, each of the first update that comes then.
    """
    names = [name for name in style.SCHEDULE_NAMES if name in set(paper.accuracy["schedule"])]
    rows = []
    for name in names:
        spec = RunSpec(strategy="ddp", nodes=256, gpus_per_node=4, schedule=name)
        per_epoch = 1_281_167 // spec.global_batch_size * spec.global_batch_size
        for quarter in range(4 * spec.epochs):
            step = quarter * (per_epoch // spec.global_batch_size) // 4
            rate = learning_rate(spec, step * spec.global_batch_size, per_epoch)
            rows.append(("sgd", name, step * spec.global_batch_size / per_epoch, rate))
    return pd.DataFrame(rows, columns=["optimizer", "schedule", "epoch", "value"])


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
def draw_schedules(points: pd.DataFrame) -> Figure:
    """Return the learning rate over epochs of the paper's schedules (its Fig. 8a)."""
    ways = points[["optimizer", "schedule"]].drop_duplicates()
    figure, (ax,) = frame(
        "Which learning rate does each schedule give to each epoch?",
        ["the paper's training on 1024 GPUs"],
        [2.4],
        [
            Line2D([], [], **_line("sgd", name), label=style.SCHEDULE_NAMES[name])
            for name in ways["schedule"]
        ],
        [
            "Question of the paper's Fig. 8a. Drawn from the code that training uses, with the "
            "paper's settings: 0.025 x 1024 at the peak, 5 epochs of linear warm-up, a tenth at "
            "epochs 30, 60 and 80 (step), eq. 1 with a minimum of 0 (cosine), 0.95 an epoch "
            "(exponential). The logarithmic axis shows what Fig. 8a's linear one hides at the end.",
        ],
    )
    for name, way in points.groupby("schedule", sort=False):
        ax.plot(way["epoch"], way["value"], **_line("sgd", name))
    ax.set_yscale("log")
    ax.set_xlabel("epoch")
    ax.set_ylabel("learning rate")
    return figure


@styled
def draw_batch_size(points: pd.DataFrame) -> Figure:
    """Return V over the global batch, ours beside what others state (the paper's Fig. 8b)."""
    ours = points[points["source"] == "measured"]
    theirs = points[points["source"] != "measured"]
    panels = _panels(ours)
    names = [*panels, *theirs["panel"].unique()]
    figure, axes = frame(
        "What becomes of the validation accuracy as the batch grows?",
        names,
        [2.2] * (len(panels) - 1) + [2.2, 2.6],
        [*_ways(points), *_others(theirs), *_crosses(ours)],
        [
            "Question of the paper's Fig. 8b.",
            *_measured(ours),
            "Open marks: values that the paper states; its curves were not digitised. Light marks: "
            "other sources, see data/published. The panels differ in data, network and length: "
            "compare shapes, not values.",
        ],
    )
    for name, ax in zip(names, axes, strict=True):
        part = points[points["panel"] == name]
        if len(part):
            _batch_axis(ax, part["global_batch_size"])
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.set_ylabel("top-1 accuracy V")
        arms = list(part[part["source"] == "measured"].groupby("label", sort=False))
        for number, (_, arm) in enumerate(arms):
            _draw_arm(ax, arm, _SIDE_BY_SIDE ** (number - (len(arms) - 1) / 2))
        _draw_stated(ax, part[part["source"] == "stated"])
        for label, series in part[part["source"] == "published"].groupby("label"):
            _series(ax, str(label), series)
    return figure


@styled
def draw_curves(points: pd.DataFrame) -> Figure:
    """Return V over epochs at the smallest and the largest batch of each study (Fig. 9)."""
    panels = list(points["panel"].unique())[:MOST_PANELS] or [NOTHING]
    figure, axes = frame(
        "How does the validation accuracy grow, at a small and at a large batch?",
        panels,
        [2.2] * ((len(panels) + 1) // 2) if len(panels) > 1 else [2.2],
        [*_ways(points), *_crosses(points)],
        [
            "Question of the paper's Fig. 9, which shows a batch of 65,536; it states no value of "
            "the curves. Thick: mean over the runs that did not diverge; thin: each run.",
            *_origin(points),
        ],
    )
    top = points["value"].max() if len(points) else 1.0
    for name, ax in zip(panels, axes, strict=True):
        part = points[points["panel"] == name]
        for _, run in part.groupby("run_id", sort=False):
            look = _line(*_way(run))
            ax.plot(run["epoch"], run["value"], linewidth=0.7, alpha=0.5, **look)
            if run["diverged"].any():
                ax.plot(run["epoch"].iloc[-1], run["value"].iloc[-1], **_cross(look["color"]))
        for _, arm in part.groupby("label", sort=False):
            mean = arm.drop_duplicates("epoch").sort_values("epoch")
            ax.plot(mean["epoch"], mean["mean"], linewidth=2.0, **_line(*_way(arm)))
        ax.set_ylim(0, 1.05 * top)
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.set_xlabel("epoch")
        ax.set_ylabel("top-1 accuracy V")
    return figure


def _panels(ours: pd.DataFrame) -> list[str]:
    return list(ours["panel"].unique())[: MOST_PANELS - 1] or [NOTHING]


def _way(table: pd.DataFrame) -> tuple[str, str]:
    return str(table["optimizer"].iloc[0]), str(table["schedule"].iloc[0])


def _line(optimizer: str, schedule: str) -> dict[str, Any]:
    look = style.way_look(optimizer, schedule)
    return {name: value for name, value in look.items() if name != "marker"}


def _batch_axis(ax: Axes, batches: pd.Series) -> None:
    """Scale x by powers of two, with a tick at each batch size, or at every second or third."""
    sizes = sorted(batches.dropna().unique())
    ax.set_xscale("log", base=2)
    ax.set_xlim(sizes[0] / _AXIS_MARGIN, sizes[-1] * _AXIS_MARGIN)
    ax.xaxis.set_major_locator(FixedLocator([float(size) for size in sizes]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.set_xlabel("global batch size (images)")


def _draw_arm(ax: Axes, arm: pd.DataFrame, shift: float) -> None:
    """Draw the means with their range, and a cross for runs that diverged."""
    look = style.way_look(*_way(arm))
    x = arm["global_batch_size"].to_numpy(dtype=float) * shift
    y = arm["value"].to_numpy(dtype=float)
    bars = [y - arm["low"].to_numpy(dtype=float), arm["high"].to_numpy(dtype=float) - y]
    ax.errorbar(x, y, yerr=bars, capsize=2.5, elinewidth=1.0, markersize=5, zorder=4, **look)
    ax.plot(x, arm["diverged_value"].to_numpy(dtype=float), **_cross(look["color"]))


def _cross(colour: str) -> dict[str, Any]:
    return {"linestyle": "none", "marker": "x", "markersize": 8, "color": colour, "zorder": 5,
            "markeredgewidth": 1.8}  # fmt: skip


def _draw_stated(ax: Axes, table: pd.DataFrame) -> None:
    """Draw the paper's values; at one batch the schedules stand side by side."""
    names = list(style.SCHEDULE_NAMES)
    for row in table.to_dict("records"):
        look = style.way_look("sgd", row["schedule"]) | {"linestyle": "none"}
        shift = 1.09 ** (names.index(row["schedule"]) - 1)
        ax.plot(row["global_batch_size"] * shift, row["value"], markerfacecolor="white",
                markersize=6, zorder=4, **look)  # fmt: skip


def _series(ax: Axes, label: str, series: pd.DataFrame) -> None:
    series = series.sort_values("global_batch_size")
    ax.plot(series["global_batch_size"].astype(float), series["value"], **_other(label), zorder=2)


def _other(label: str) -> dict[str, Any]:
    return {"color": "#999999", "marker": style.PUBLISHED_MARKERS[label], "markersize": 5,
            "linewidth": 1.0}  # fmt: skip


def _ways(points: pd.DataFrame) -> list[Artist]:
    if "source" in points:
        points = points[points["source"] != "published"]
    ways = points[["optimizer", "schedule"]].drop_duplicates()
    order = [(one, two) for one in style.OPTIMIZER_NAMES for two in style.SCHEDULE_NAMES]
    there = set(ways.itertuples(index=False, name=None))
    return [
        Line2D([], [], **style.way_look(*way), markersize=5, label=style.way_name(*way))
        for way in order
        if way in there
    ]


def _others(theirs: pd.DataFrame) -> list[Artist]:
    labels = sorted(theirs.loc[theirs["source"] == "published", "label"].unique())
    return [Line2D([], [], **_other(label), label=label) for label in labels]


def _crosses(table: pd.DataFrame) -> list[Artist]:
    diverged = table["diverged"].fillna(0).astype(int).sum()
    return [Line2D([], [], **_cross(style.UNNAMED_COLOUR), label="diverged")] if diverged else []


def _measured(ours: pd.DataFrame) -> Sequence[str]:
    done = ours[ours["n"] > 0]
    lost = [
        f"{name.capitalize()}: {int(ours[name].sum())} runs"
        + (" (crosses: their V)." if name == "diverged" else ".")
        for name in ("diverged", "failed")
        if ours[name].sum()
    ]
    if done.empty:
        return ["Nothing measured here yet.", *lost]
    return [
        f"Measured: mean of {captions.counted('n', done['n'])} runs, each with its own seed; bars: "
        "the range of these runs.",
        *lost,
        *captions.machines(done),
        captions.commits(done),
    ]


def _origin(points: pd.DataFrame) -> list[str]:
    if points.empty:
        return ["Nothing measured here yet."]
    return [*captions.machines(points), captions.commits(points)]
