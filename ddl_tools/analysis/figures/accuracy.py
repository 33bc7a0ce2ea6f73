"""Accuracy over the batch, over epochs, and the time to it; and the learning rate of schedules."""

import math
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from ddl_core.config import RunSpec
from ddl_core.schedules import learning_rate
from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import (
    KEYS,
    asks_for_accuracy,
    commits,
    ended_runs,
    run_labels,
    stack,
    with_model,
    with_settings,
)
from ddl_tools.analysis.estimates import POINT, Estimate
from ddl_tools.analysis.figures import naming
from ddl_tools.analysis.figures.columns import ORIGIN, WHO, typed
from ddl_tools.analysis.paper import SYSTEM, Paper
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import frame, handles, panel_figure, styled
from ddl_tools.analysis.plot.rows import interval
from ddl_tools.analysis.plot.style import SEPARATOR
from ddl_tools.analysis.tables import not_emulated
from ddl_tools.labels import NAMES, REPEATS, plural

# Of a global batch.
SHAPE = ["nodes", "gpus_per_node", "local_batch_size", "accumulation", "micro_batches_per_pass"]
_CROSS: dict[str, Any] = {"color": "#666666", "linestyle": "none", "marker": "x",
                          "markersize": 8, "markeredgewidth": 1.8, "zorder": 5}  # fmt: skip
# Share of a panel's best mean V that "to accuracy" means: the paper names no target.
TARGET_SHARE = 0.9

# Top-1 accuracy with the running statistics of batch normalisation, and with precise ones.
RUNNING, PRECISE = "running statistics", "statistics estimated anew"  # in this order
EVALUATIONS = {RUNNING: "top1", PRECISE: "precise_bn_top1"}

_STUDIED = ["study", "dataset", "model", "epochs", "optimizer", "schedule", "base_lr"]
BATCHES = typed(
    "panel source", " ".join(_STUDIED), "label evaluation global_batch_size updates",
    "n diverged failed repeats values value sd low high diverged_value",
    "target reached epochs_to_target seconds_to_target",
    "approx statement printed place note", ORIGIN, evaluation="string", values="string",
)  # fmt: skip
CURVES = typed(
    "panel study optimizer schedule label global_batch_size repeat run_id diverged epochs epoch",
    "value mean", ORIGIN, diverged="boolean",
)  # fmt: skip
TIMES = typed(
    "panel", WHO, "dataset local_batch_size world_size target n reached failed epochs",
    "value low high", ORIGIN, epochs="float64",
)  # fmt: skip
_STATED_ONLY = "No run measured here: only what the paper and others state."
_OTHERS: dict[str, Any] = {"color": "#999999", "markeredgecolor": "#999999", "markersize": 5,
                           "linestyle": "solid", "linewidth": 1.0, "zorder": 2}  # fmt: skip
_STATED: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "white", "markersize": 6}
_MOST_MARKS = 10  # on one curve
# Shares of the test images, absolute: a share of a study's best would be another in each study.
# The papers name none. The second is for the part of the data that a laptop trains on.
TARGETS = {"cifar10": 0.9, "fashion_mnist": 0.6}


def made(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of accuracy studies that were made to their end, good or bad.

    Added: ``label`` (what a configuration is called), ``commit``, the columns of `with_settings`.
    """
    runs = not_emulated(runs)
    ended = runs["status"].isin(["completed", "failed"])
    table = with_settings(runs[asks_for_accuracy(runs) & ended & (runs["work"] == "train")])
    table["diverged"] = table["diverged"].fillna(False).astype(bool)
    table["commit"] = commits(table)
    return table.assign(label=pd.array(_labels(table), dtype="string"))


def _labels(table: pd.DataFrame) -> list[str]:
    """Return what each configuration is called: how it learns, and what else sets it apart.

    Those of several batch sizes have one label, and are one line. Where a batch is made in several
    ways, of more ranks or of more micro-batches, the label names the way.
    """
    found = pd.Series("", index=table.index, dtype="string")
    for _, runs in table.groupby(["study", "optimizer", "schedule"]):
        apart = _unusual(run_labels(runs, (*REPEATS, *SHAPE)))
        shapes = runs[SHAPE].assign(apart=apart, batch=runs["global_batch_size"])
        if shapes.drop_duplicates().duplicated(["apart", "batch"]).any():
            apart = run_labels(runs, REPEATS)
        found.loc[runs.index] = apart
    names = zip(table["optimizer"], table["schedule"], found, table["differs"], strict=True)
    return [
        style.way_name(optimizer, schedule) + (f", {apart}" if apart else "") + differs
        for optimizer, schedule, apart, differs in names
    ]


def _unusual(labels: pd.Series) -> pd.Series:
    """Return labels without the parts that most runs have: e.g. only what was tried beside them."""
    counts = labels.value_counts()
    if 2 * counts.iloc[0] <= len(labels):
        return labels
    usual = set(str(counts.index[0]).split(", "))
    return labels.map(lambda label: ", ".join(p for p in label.split(", ") if p not in usual))


def numbers(cell: Any) -> np.ndarray:
    """Return the numbers of a cell that lists them."""
    return np.array([] if pd.isna(cell) else str(cell).split(";"), dtype=float)


def batch_points(runs: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return final V over the global batch: ours, a panel per study, then ImageNet by others.

    Columns: `BATCHES`. A row of ours is one configuration in one of the `EVALUATIONS`. value, sd,
    low and high are mean, standard deviation and 95 % interval of the mean over the n runs that
    neither failed nor diverged (no interval of fewer than `LEAST_SHOWN`), whose ``values`` are in
    the order of ``repeats``; V of those that diverged is apart. epochs_to_target and
    seconds_to_target are medians over the runs that reached `TARGET_SHARE` of the best mean V of
    the same network and data in the study (``reached`` of them); seconds are of training alone,
    without evaluation.
    """
    groups = [group for _, group in made(runs).groupby(naming.KEY, dropna=False)]
    rows = [_row(group, RUNNING) for group in groups]
    best = pd.DataFrame(rows, columns=["panel", "value"]).groupby("panel")["value"].max()
    for row, group in zip(rows, groups, strict=True):
        row |= _to_target(group, TARGET_SHARE * best[row["panel"]])
    rows += [_row(group, PRECISE) for group in groups if group[EVALUATIONS[PRECISE]].notna().any()]
    measured = pd.DataFrame(rows, columns=list(BATCHES)).astype(BATCHES)
    order = [*_STUDIED[:3], "evaluation", *_STUDIED[3:], "label", "global_batch_size"]
    measured = measured.sort_values(order)
    return pd.concat([measured, _stated(paper), _published(paper)], ignore_index=True)


def _row(group: pd.DataFrame, evaluation: str) -> dict[str, Any]:
    group, first = group.sort_values("repeat"), group.iloc[0]
    top1, failed = group[EVALUATIONS[evaluation]], group["status"] == "failed"
    lost = group["diverged"] & ~failed
    good = top1[~failed & ~lost].dropna()
    batch = int(first["global_batch_size"])
    per_epoch = group["images_per_epoch"].max()
    mean = estimates.middle(np.exp(good))  # whose logarithms are the accuracies
    several = group["precise_bn"].any()
    return first[[*_STUDIED, "label", "hardware"]].to_dict() | {
        "panel": f"{style.dataset_name(first['dataset'])}, "
        f"{style.model_name(first['model'])}: {first['study']}"
        + (f", {evaluation}" if several else ""),
        "source": "measured",
        "evaluation": evaluation,
        "global_batch_size": batch,
        "updates": pd.NA if pd.isna(per_epoch) else int(per_epoch) // batch * first["epochs"],
        "n": len(good),
        "diverged": int(lost.sum()),
        "failed": int(failed.sum()),
        "repeats": ";".join(map(str, group.loc[good.index, "repeat"])),
        "values": ";".join(f"{value:.6g}" for value in good),
        "value": good.mean(),
        "sd": good.std(),
        "low": np.log(mean.low) if mean.n >= estimates.LEAST_SHOWN else np.nan,
        "high": np.log(mean.high) if mean.n >= estimates.LEAST_SHOWN else np.nan,
        "diverged_value": top1[lost].mean(),
        "on_cpu": bool(first["on_cpu"]),
        "commit": ";".join(sorted(set(group["commit"]))),
    }


def _to_target(part: pd.DataFrame, target: float) -> dict[str, Any]:
    hits = [hit for run in part.to_dict("records") if (hit := _reached(run, target))]
    epochs, seconds = np.median(hits, axis=0) if hits else (np.nan, np.nan)
    medians = {"epochs_to_target": epochs, "seconds_to_target": seconds}
    return medians | {"target": target, "reached": len(hits)}


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
    return table.reindex(columns=list(BATCHES)).astype(BATCHES)


def _published(paper: Paper) -> pd.DataFrame:
    """Return the series of others with two or more batch sizes and a source that was read."""
    table = paper.published
    table = table[table["evidence"].isin(["source_read", "quoted"])]
    sizes = table.groupby("source")["global_batch_size"].transform("nunique")
    table = table[sizes > 1]
    table = table.assign(
        panel=IMAGENET_PANEL,
        source="published",
        label=[style.PUBLISHED.get(name, (name, ""))[0] for name in table["source"]],
        dataset="imagenet",
        value=table["value"] / 100,
        note=table["source"],
    )
    return table.reindex(columns=list(BATCHES)).astype(BATCHES)


def lost(points: pd.DataFrame) -> pd.DataFrame:
    """Return how much V each way to learn loses from its smallest to its largest batch.

    One row per panel and way to learn, the smallest loss first in each study: the mean difference,
    by seed where possible, low and high its 95 % interval (n of `LEAST_SHOWN` or more). Batches of
    which all runs were lost do not count: ``to_batch`` is the last one that counts. decision is
    that of `differences`.
    """
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    names = ["study", "panel", "label"]
    rows = []
    for name, own in ours.sort_values("global_batch_size").groupby(names):
        first, last = own.iloc[[0, -1]].to_dict("records")
        gap = _gap(first, last)
        ends = (np.log(gap.low), np.log(gap.high)) if gap.n >= estimates.LEAST_SHOWN else ()
        sizes = (one["global_batch_size"] for one in (first, last))
        rows.append(
            (*name, *sizes, gap.n, gap.log_mean, *(ends or (np.nan, np.nan)), _decision(gap))
        )
    names += ["from_batch", "to_batch", "n", "lost", "low", "high", "decision"]
    table = pd.DataFrame(rows, columns=names)
    return table.sort_values(["study", "lost"], ignore_index=True)


def curve_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return V after each epoch of every run, at the smallest and the largest batch of a study.

    Columns: `CURVES`; ``mean`` is over the runs of a configuration that did not diverge.
    """
    table = made(runs)
    rows = []
    for _, study in table[table["status"] == "completed"].groupby("study"):
        several = study["model"].nunique() > 1
        ends = study["global_batch_size"].agg(["min", "max"])
        own = study[study["global_batch_size"].isin(ends)]
        own = own.sort_values("global_batch_size", kind="stable")
        for run in own.to_dict("records"):
            shared = {name: run[name] for name in CURVES if name in run}
            shared["panel"] = _panel(run, several)
            epochs, values = (numbers(run[f"evaluated_{name}"]) for name in ("epochs", "top1"))
            rows += [
                shared | {"epoch": int(epoch), "value": value}
                for epoch, value in zip(epochs, values, strict=True)
            ]
    curves = pd.DataFrame(rows, columns=list(CURVES)).astype(CURVES)
    good = curves["value"].where(~curves["diverged"])
    keys = [curves[name] for name in ("panel", "label", "epoch")]
    curves["mean"] = good.groupby(keys).transform("mean")
    return curves


def _panel(run: dict[str, Any], model: bool) -> str:
    data, batch = style.dataset_name(run["dataset"]), f"batch {run['global_batch_size']}"
    parts = [data, *([style.model_name(run["model"])] if model else []), batch]
    return f"{', '.join(parts)}: {run['study']}"


def schedule_points(paper: Paper) -> pd.DataFrame:
    """Return the learning rate over epochs as the paper trained on 1024 GPUs (its Fig. 8a).

    Four values an epoch, each of the first update that comes then.
    """
    names = style.listed(paper.accuracy["schedule"], NAMES["schedule"])
    rows = []
    for name in names:
        spec = RunSpec.parse(
            {"strategy": "ddp", "nodes": 256, "gpus_per_node": 4, "schedule": name}
        )
        per_epoch = 1_281_167 // spec.global_batch_size * spec.global_batch_size
        for quarter in range(4 * spec.epochs):
            step = quarter * (per_epoch // spec.global_batch_size) // 4
            rate = learning_rate(spec, step * spec.global_batch_size, per_epoch)
            rows.append(("sgd", name, step * spec.global_batch_size / per_epoch, rate))
    return pd.DataFrame(rows, columns=["optimizer", "schedule", "epoch", "value"])


def time_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per configuration and number of ranks, where two were evaluated: `TIMES`.

    value is the median of the seconds that n runs trained to `TARGETS`, evaluations not counted,
    low and high the least and the most; epochs is the median of theirs. All are missing where not
    every run came so far (``reached``): the others' median would be that of the lucky ones.
    """
    made = ended_runs(runs)
    made = made[made["dataset"].isin(TARGETS) & made["evaluated_top1"].notna()]
    made["panel"] = made["loader"].map(style.loader_name) + SEPARATOR + with_model(made)
    sizes = made.groupby([name for name in KEYS if name != "world_size"])["world_size"]
    rows = [_time(group) for _, group in made[sizes.transform("nunique") > 1].groupby(KEYS)]
    return stack([pd.DataFrame(rows, columns=list(TIMES))], TIMES)


def _time(group: pd.DataFrame) -> dict[str, Any]:
    first, known = group.iloc[0].to_dict(), group[~group["lost"]]
    target = TARGETS[first["dataset"]]
    hits = [_reached(run, target) for run in known.to_dict("records")]
    found = [hit for hit in hits if hit]
    seconds = [hit[1] for hit in found] if found and len(found) == len(hits) else [np.nan]
    return first | {
        "target": target,
        "n": len(known),
        "reached": len(found),
        "failed": int(group["lost"].sum()),
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
def draw_batches(points: pd.DataFrame) -> Figure:
    """Return V over the global batch: ours, or else what others state (the paper's Fig. 8b)."""
    ours = points[points["source"] == "measured"]
    none = ours[["value", "diverged_value"]].isna().all(axis=None)
    shown = points if none else ours
    marks = dict(style.PUBLISHED.values())
    others = {
        label: _OTHERS | {"marker": marks.get(label, style.SPARE_MARKERS[0])}
        for label in sorted(shown.loc[shown["source"] == "published", "label"].unique())
    }
    looks = _looks(shown[shown["source"] != "published"])
    hidden = points["panel"].nunique() - shown["panel"].nunique()
    twice = (ours["evaluation"] == PRECISE).any()
    figure, panels = panel_figure(
        _finding(points),
        shown,
        [
            *handles(looks, **_STATED if none else {"markersize": 5}),
            *handles(others),
            *([] if none else _crosses(ours)),
        ],
        [
            *_means(ours),
            *(["Open marks: stated by the paper; grey: data/published."] if none else []),
            *captions.not_drawn("Panels", hidden),
        ],
        1.9 if none else 2.2,
        columns=2 if twice else 1,
        note=_STATED_ONLY if none else "",
    )
    for ax, part in panels:
        part = part.rename(columns={"global_batch_size": "at"})
        curves.batch_axis(ax, part["at"].dropna(), "global batch size (images)")
        _accuracy_axis(ax)
        if twice:  # panels side by side are compared
            ax.set_ylim(0, 1)
        own, stated, published = (
            part[part["source"] == source] for source in ("measured", "stated", "published")
        )
        curves.lines(ax, own, "at", "label", looks, markersize=5)
        _draw_crosses(ax, own, "at", "diverged_value", looks)
        for row in stated.to_dict("records"):
            ax.plot(row["at"], row["value"], **looks[row["label"]] | _STATED)
        for label, series in published.sort_values("at").groupby("label"):
            ax.plot(series["at"], series["value"], **others[str(label)])
    return figure


# The paper's order at its largest batch: exponential is far ahead, cosine last (O20).
_FIRST, _LAST = "exponential", "cosine"


def differences(points: pd.DataFrame) -> pd.DataFrame:
    """Return by how much V of SGD differs from its cosine schedule, at each batch of a study.

    By seed where possible; low and high are the 95 % interval of the mean difference, p is
    two-sided. decision is what the interval says (`estimates.decision`): accuracies are equivalent
    within one percentage point, and inconclusive with less than `LEAST_SHOWN` values. A row is a
    study, an evaluation, a batch and a label of SGD or of another optimiser.
    """
    rows = []
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    for (study, panel, evaluation, batch), part in ours.groupby(
        ["study", "panel", "evaluation", "global_batch_size"]
    ):
        ways = {row["label"]: row for row in part.to_dict("records")}
        base = ways.pop(style.way_name("sgd", _LAST), None)
        if base is None:
            continue
        for label, own in ways.items():
            one = _gap(own, base)
            p = min(1.0, 2 * min(estimates.p_greater(one), estimates.p_less(one)))
            rows.append((study, panel, evaluation, batch, label, one.n, one.log_mean,
                         np.log(one.low), np.log(one.high), p, _decision(one)))  # fmt: skip
    names = ["study", "panel", "evaluation", "global_batch_size", "label", "n"]
    return pd.DataFrame(rows, columns=[*names, "difference", "low", "high", "p", "decision"])


def _decision(gap: Estimate) -> str:
    if gap.n < estimates.LEAST_SHOWN:
        return estimates.INCONCLUSIVE
    return estimates.decision(gap, math.expm1(POINT))


def _unsure(row: Any) -> str:
    """Return the decision on a difference that the title states; nothing if it is shown."""
    shown = row["decision"] in (estimates.GREATER, estimates.LESS)
    return "" if shown else f" ({row['decision']})"


def _by_seed(row: dict[str, Any]) -> pd.Series:
    seeds, values = (numbers(row[name]) for name in ("repeats", "values"))
    return pd.Series(values, seeds.astype(int))


def _gap(one: dict[str, Any], other: dict[str, Any]) -> Estimate:
    """Return e to the mean difference of V of two rows: in pairs of one seed, else of all runs."""
    above, below = (np.exp(_by_seed(row)) for row in (one, other))
    seeds = above.index.intersection(below.index)
    if seeds.empty:
        return estimates.unpaired_ratio(above, below)
    return estimates.paired_ratio(above[seeds], below[seeds])


def answers(points: pd.DataFrame) -> list[str]:
    """Return what large batches cost, from which one on, and which ways differ at the largest.

    Ways are compared with SGD's cosine schedule, see `differences`.
    """
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    first, batch = ours["global_batch_size"].min(), ours["global_batch_size"].max()
    costs = lost(points).merge(ours[["panel", "evaluation"]].drop_duplicates())
    costs = costs[(costs["from_batch"] == first) & (costs["evaluation"] == RUNNING)].copy()
    shares = ["lost", "low", "high"]
    costs[shares] *= 100
    worse = []
    for row in costs.to_dict("records"):
        own = ours[(ours["panel"] == row["panel"]) & (ours["label"] == row["label"])]
        worse.append(f"{row['label']} {_worse_from(own) or 'none'}")
    costs = costs[costs["to_batch"] == batch]
    texts = [
        f"{row['label']} {row['lost']:.1f}{interval(row, '{:.1f}')}"
        for row in costs.to_dict("records")
    ]
    how = ", ".join(filter(None, ["by seed where possible", captions.counted("n", costs["n"])]))
    return [
        f"Points of accuracy lost from batch {first} to {batch} ({how}): "
        f"{'; '.join(texts) or 'none'}.",
        f"Conclusively worse than batch {first} from this batch on: {'; '.join(worse)}.",
        *_different(differences(points), batch),
    ]


def _worse_from(line: pd.DataFrame) -> int:
    """Return the batch from which on V is conclusively below that of the smallest, 0 if none."""
    base, *larger = line.sort_values("global_batch_size").to_dict("records")
    gaps = ((row["global_batch_size"], _gap(row, base)) for row in reversed(larger))
    worse = takewhile(lambda at: _decision(at[1]) == estimates.LESS, gaps)
    return min((size for size, _ in worse), default=0)


def _different(table: pd.DataFrame, batch: int) -> list[str]:
    """Return the sentence on the ways whose difference is decided."""
    parts = []
    shares = ["difference", "low", "high"]
    table = table[table["global_batch_size"] == batch].copy()
    table[shares] *= 100
    for (evaluation, _), part in table.groupby(["evaluation", "panel"]):
        sure = part[part["decision"].isin((estimates.GREATER, estimates.LESS))]
        ways = [
            "{label} {difference:+.1f} points [{low:+.1f}, {high:+.1f}]".format_map(row)
            for row in sure.to_dict("records")
        ]
        parts.append(f"{', '.join(ways) or 'none'} with {evaluation}")
    cosine = style.way_name("sgd", _LAST)
    told = f"Conclusively different from {cosine} at batch {batch}: {'; '.join(parts)}"
    return [f"{told}; others are inconclusive."] if parts else []


def _finding(points: pd.DataFrame) -> str:
    """Return how the paper's first and last schedule differ at the largest batch of a study."""
    table = differences(points)
    table = table[table["label"] == style.way_name("sgd", _FIRST)]
    largest = table[table["global_batch_size"] == table["global_batch_size"].max()]
    if PRECISE not in set(largest["evaluation"]):
        return _most_lost(points)
    gaps = largest.drop_duplicates("evaluation").set_index("evaluation").to_dict("index")
    texts = [
        f"{100 * gap['difference']:+.0f} points{_unsure(gap)} with {name}"
        for name in EVALUATIONS
        if (gap := gaps.get(name))
    ]
    batch = int(largest["global_batch_size"].iloc[0])
    return f"At batch {batch:,}, {_FIRST} minus {_LAST} is {' and '.join(texts)}"


def _most_lost(points: pd.DataFrame) -> str:
    """Return how much accuracy is lost from the smallest to the largest batch."""
    table = lost(points)
    if table.empty:
        stated = points[points["source"] == "stated"]
        most = stated["global_batch_size"].max()
        reached = 100 * stated.loc[stated["global_batch_size"] == most, "value"]
        return f"At a batch of {most:,} the paper states {captions.span(reached, '{:.0f}')} %"
    parts = []
    for row in (table.iloc[0], table.iloc[-1]):
        parts.append(
            f"{row['label']} loses {100 * row['lost']:.1f} points of accuracy{_unsure(row)}"
        )
    sizes = f"From batch {table['from_batch'].iloc[0]} to {table['to_batch'].iloc[0]}"
    return f"{sizes}, {', '.join(dict.fromkeys(parts))}"


def _means(ours: pd.DataFrame) -> list[str]:
    done = ours[ours["n"] > 0]
    gone = [
        f"{name.capitalize()}: {int(ours[name].sum())} runs."
        for name in ("diverged", "failed")
        if ours[name].sum()
    ]
    if done.empty:
        return gone
    return ["Means of the runs; bars: their 95 % intervals.", *gone]


@styled
def draw_curves(points: pd.DataFrame) -> Figure:
    """Return V over epochs at the smallest and the largest batch of each study (Fig. 9)."""
    looks = _looks(points)
    figure, panels = panel_figure(
        _ended(points),
        points,
        [*handles(looks, markersize=5), *_crosses(points)],
        ["Thick: mean; thin: each run with its own seed."]
        if len(points) else ["Nothing measured here yet."],
        2.2,
        columns=2,
    )  # fmt: skip
    for ax, part in panels:
        ax.set_ylim(0, 1.05 * points["value"].max() if len(points) else 1)
        ax.set_xlabel("epoch")
        _accuracy_axis(ax)
        thin = {"linewidth": 0.7, "alpha": 0.5, "marker": ""}
        for (label, _), run in part.groupby(["label", "run_id"]):
            ax.plot(run["epoch"], run["value"], **looks[str(label)] | thin)
        for label, mean in part.drop_duplicates(["label", "epoch"]).groupby("label"):
            thick = {"linewidth": 2.0, "markersize": 5, "markevery": -(-len(mean) // _MOST_MARKS)}
            ax.plot(mean["epoch"], mean["mean"], **looks[str(label)] | thick)
        ends = part[part["diverged"]].drop_duplicates("run_id", keep="last")
        _draw_crosses(ax, ends, "epoch", "value", looks)
    return figure


def _ended(points: pd.DataFrame) -> str:
    """Return the mean accuracies of the last epoch, at each batch size."""
    parts = []
    for batch, part in points[points["mean"].notna()].groupby("global_batch_size"):
        last = part[part["epoch"] == part["epoch"].max()]["mean"]
        parts.append(f"{captions.span(100 * last, '{:.1f}')} % at batch {batch}")
    return "Accuracy ends at " + " and ".join(parts) if parts else "No run has ended"


@styled
def draw_schedules(points: pd.DataFrame) -> Figure:
    """Return the learning rate over epochs of the paper's schedules (its Fig. 8a)."""
    names = list(points["schedule"].unique())
    looks = {name: {"color": style.way_look("sgd", name, names)["color"]} for name in names}
    last = points.groupby("schedule")["value"].last()
    figure, (ax,) = frame(
        f"All schedules peak at {points['value'].max():g} and end at "
        f"{captions.span(last, '{:.1g}')}",
        ["the paper's training on 1024 GPUs"],
        [2.4],
        handles({style.schedule_name(name): look for name, look in looks.items()},
                linestyle="solid"),
        [
            "No run: computed by the code that training uses, with the paper's settings (Fig. 8a). "
            "0.025 x 1024 at the peak, 5 epochs of linear warm-up.",
        ],
    )  # fmt: skip
    for name, part in points.groupby("schedule"):
        ax.plot(part["epoch"], part["value"], **looks[str(name)])
    ax.set(yscale="log", xlabel="epoch", ylabel="learning rate")
    return figure


@styled
def draw_times(points: pd.DataFrame) -> Figure:
    """Return the seconds to accuracy over ranks; a panel per setting, network and loader."""
    points = style.with_framework_strategy(points)
    looks = style.strategy_looks(points["framework_strategy"])
    legend = handles(style.strategies_named(looks), markersize=5)
    caption = _time_caption(points)
    figure, panels = panel_figure(_fastest(points), points, legend, caption, 2.2)
    for ax, part in panels:
        curves.rate_axis(ax, part[["value", "low", "high"]].stack(), "seconds of training")
        curves.rank_axis(ax, part["world_size"])
        curves.lines(ax, part, "world_size", "framework_strategy", looks, markersize=5)
    return figure


def _fastest(points: pd.DataFrame) -> str:
    known = points[points["value"].notna()]
    if known.empty:
        return "No configuration has reached the accuracy at two numbers of ranks"
    best = known.loc[known["value"].idxmin()]
    name = style.strategy_name(best["framework_strategy"])
    ranks = plural(best["world_size"], "rank")
    time = f"The shortest median time to {best['target']:.0%} is {best['value']:.3g} s"
    return f"{time}: {name} on {ranks}"


def _time_caption(points: pd.DataFrame) -> list[str]:
    if points.empty:
        return []
    known = points[points["n"] > 0]
    short = int((known["reached"] < known["n"]).sum())
    return [
        "Medians of the runs; bars: their range. Without evaluations.",
        *([f"Configurations not drawn, as not every run arrived: {short}."] if short else []),
        *captions.lost(points),
        *captions.discontinued(known),
    ]


def _looks(points: pd.DataFrame) -> style.Looks:
    """Return how each label looks, in the order of the legend: by optimiser and schedule.

    Several labels of one of these differ in their marks.
    """
    ways = points[["optimizer", "schedule", "label"]].drop_duplicates()
    schedules = style.listed(ways["schedule"], NAMES["schedule"])
    optimizers = style.listed(ways["optimizer"], NAMES["optimizer"])
    ways = ways.sort_values(
        ["optimizer", "schedule"],
        key=lambda names: names.map([*optimizers, *schedules].index),
        kind="stable",
    )
    ways["number"] = ways.groupby(["optimizer", "schedule"]).cumcount()
    looks: style.Looks = {}
    for optimizer, schedule, label, number in ways.itertuples(index=False):
        looks[label] = style.way_look(optimizer, schedule, schedules)
        if number:
            for part, spare in (("marker", style.SPARE_MARKERS), ("linestyle", style.SPARE_LINES)):
                looks[label][part] = spare[(number - 1) % len(spare)]
    return looks


def _accuracy_axis(ax: Axes) -> None:
    """Let y be a share in percent."""
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_ylabel("top-1 accuracy")


def _draw_crosses(ax: Axes, table: pd.DataFrame, x: str, y: str, looks: style.Looks) -> None:
    """Draw a cross in the colour of its label for each row: runs that diverged."""
    for label, part in table.groupby("label"):
        ax.plot(part[x], part[y], **_CROSS | {"color": looks[str(label)]["color"]})


def _crosses(table: pd.DataFrame) -> list[Line2D]:
    """Return what the legend says of crosses, nothing without any."""
    diverged = table["diverged"].fillna(0).astype(int).sum()
    return handles({"diverged": _CROSS}) if diverged else []
