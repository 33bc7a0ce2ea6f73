"""Validation accuracy against batch size: the points of the figures, from the table of runs."""

from typing import Any

import numpy as np
import pandas as pd

from ddl_core.analysis.paper import SYSTEM, Paper
from ddl_core.analysis.plot import style
from ddl_core.analysis.settings import with_settings
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


def asks_for_accuracy(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Say of each run whether its study varies how is learnt: schedule or optimiser.

    What such a study shows is its accuracy. Its throughputs pool what nobody compares, and stand in
    no figure of throughput.
    """
    ways = runs["optimizer"] + " " + runs["schedule"]
    return ways.groupby(runs["study"]).transform("nunique") > 1


def made(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of accuracy studies that were made to their end, good or bad.

    Added: ``label`` (what the arm is called), ``commit``, and the columns of `with_settings`.
    """
    ended = runs["status"].isin(["completed", "failed"])
    table = with_settings(runs[asks_for_accuracy(runs) & ended & (runs["work"] == "train")])
    table["diverged"] = table["diverged"].fillna(False).astype(bool)
    dirty = table["git_dirty"].fillna(False).astype(bool).map({True: "+", False: ""})
    table["commit"] = table["git_commit"].fillna("unknown").str[:8] + dirty.astype("string")
    rates = table.groupby(["study", "optimizer", "schedule"])["base_lr"].transform("nunique")
    names = [
        style.way_name(optimizer, schedule) + (f", rate {rate:g}" if several > 1 else "")
        for optimizer, schedule, rate, several in zip(
            table["optimizer"], table["schedule"], table["base_lr"], rates, strict=True
        )
    ]
    return table.assign(label=pd.array(names, dtype="string"))


def accuracy_vs_batch_size(runs: pd.DataFrame, paper: Paper) -> pd.DataFrame:
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


def learning_curves(runs: pd.DataFrame) -> pd.DataFrame:
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


def schedules(paper: Paper) -> pd.DataFrame:
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
