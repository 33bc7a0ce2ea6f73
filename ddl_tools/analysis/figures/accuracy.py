"""Accuracy over the global batch, of runs and as others state it."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import starts
from ddl_tools.analysis.figures.accuracy_differences import answers
from ddl_tools.analysis.figures.accuracy_runs import EVALUATIONS, PRECISE, RUNNING, arrivals, made
from ddl_tools.analysis.figures.columns import ORIGIN, typed
from ddl_tools.analysis.figures.ways import accuracy_axis, crosses, draw_crosses, way_looks
from ddl_tools.analysis.paper import SYSTEM, Paper
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import add_caption, handles, panel_figure, styled
from ddl_tools.analysis.plot.labels import Name, along, name_points
from ddl_tools.analysis.plot.rows import cell_text
from ddl_tools.analysis.question import Question, Tables, in_percent, question
from ddl_tools.names import plural

# Share of a panel's best mean V that "to accuracy" means: the paper names no target.
TARGET_SHARE = 0.9

_STUDIED = ["study", "dataset", "model", "epochs", "optimizer", "schedule", "base_lr"]
BATCHES = typed(
    "panel source",
    " ".join(_STUDIED),
    "label evaluation global_batch_size updates",
    "n diverged failed repeats values value sd low high diverged_value",
    "target reached epochs_to_target seconds_to_target",
    "approx statement printed place note",
    ORIGIN,
    evaluation="string",
    values="string",
)
_STATED_ONLY = "No run measured here: only what the paper and others state."
_OTHERS: dict[str, Any] = {
    "color": "#999999",
    "markeredgecolor": "#999999",
    "markersize": 5,
    "linestyle": "solid",
    "linewidth": 1.0,
    "zorder": 2,
}
_RIGHT = 0.4  # inches beside the panel for names
_ABOVE = 0.1  # room for names above the largest share
_NAME_OF_OTHERS, _BLACK = "#666666", "#000000"
_WIDE, _HIGH = 4.4, 2.2  # inches of the panel of statements: at least, and exactly
_STATED: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "none", "markersize": 6}


def batch_points(runs: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return final V over the global batch: ours, a panel per study, then ImageNet by others.

    Columns: `BATCHES`. A row of ours is one configuration in one of the `EVALUATIONS`. value, sd,
    low and high are mean, standard deviation and 95 % interval of the mean over the n runs that
    neither failed nor diverged (no interval of fewer than `LEAST`), whose ``values`` are in
    the order of ``repeats``; V of those that diverged is apart. epochs_to_target and
    seconds_to_target are medians to `TARGET_SHARE` of the best mean V of the same network and data
    in the study, see `arrivals`; ``reached`` runs came so far. Seconds are of training alone,
    without evaluation.
    """
    groups = starts(made(runs))
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
        **mean.log().columns(),
        "value": good.mean(),  # not by way of logarithms: the same last digit
        "sd": good.std(),
        "diverged_value": top1[lost].mean(),
        "on_cpu": bool(first["on_cpu"]),
        "commit": ";".join(sorted(set(group["commit"]))),
    }


def _to_target(part: pd.DataFrame, target: float) -> dict[str, Any]:
    reached, hits = arrivals(part, target)
    epochs, seconds = np.median(hits, axis=0)
    medians = {"epochs_to_target": epochs, "seconds_to_target": seconds}
    return medians | {"target": target, "reached": reached}


IMAGENET_PANEL = "Stated by others: ImageNet, ResNet50 if no other network is named"


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


def _means(ours: pd.DataFrame) -> list[str]:
    done = ours[ours["n"] > 0]
    gone = [
        f"{name.capitalize()}: {plural(int(ours[name].sum()), 'run')}."
        for name in ("diverged", "failed")
        if ours[name].sum()
    ]
    if done.empty:
        return gone
    return ["Means of the runs; bars: their 95 % intervals.", *gone]


@styled
def _draw_ours(title: str, ours: pd.DataFrame, caption: list[str]) -> Figure:
    """Return V over the global batch with a line per way to learn."""
    looks = way_looks(ours)
    twice = (ours["evaluation"] == PRECISE).any()
    figure, panels = panel_figure(
        title,
        ours,
        [*handles(looks, markersize=5), *crosses(ours)],
        [*_means(ours), *caption],
        2.2,
        columns=2 if twice else 1,
    )
    for ax, part in panels:
        part = _axes(ax, part)
        if twice:  # panels side by side are compared
            every = ours[["value", "low", "high", "diverged_value"]]
            curves.share_axis(ax, every.stack(), most=1)
        curves.lines(ax, part, "at", "label", looks, markersize=5)
        draw_crosses(ax, part, "at", "diverged_value", looks)
    return figure


@styled
def _draw_others(title: str, points: pd.DataFrame) -> Figure:
    """Return V over the global batch as the paper and others state it, each with its name."""
    figure, panels = panel_figure(
        title,
        points,
        [],
        [
            "Open marks: stated by the paper, black where it names no schedule. "
            "Lines: data/published.",
        ],
        _HIGH,
        note=_STATED_ONLY,
    )
    looks, marks = way_looks(points[points["source"] == "stated"]), dict(style.PUBLISHED.values())
    for ax, part in panels:
        part, names = _axes(ax, part), []
        curves.share_axis(ax, pd.concat([part["value"], part["value"] + _ABOVE]), most=1)
        stated = part[part["source"] == "stated"]
        unnamed_at = stated.loc[stated.duplicated(["at", "statement"]), "at"].max()
        for _, same in stated.groupby(["at", "statement"], sort=False):
            row, alone = same.iloc[0], len(same) == 1
            look = looks[row["label"]] if alone else style.UNNAMED_LOOK | {"color": _BLACK}
            ax.plot(row["at"], row["value"], zorder=6, **look | _STATED)
            if alone or row["at"] == unnamed_at:
                name = row["label"] if alone else "the paper: schedule not named"
                names.append(Name(row["at"], row["value"], name, look["color"]))
        for label, series in part[part["source"] == "published"].groupby("label"):
            series = series.sort_values("at")
            look = _OTHERS | {"marker": marks.get(str(label), style.SPARE_MARKERS[0])}
            ax.plot(series["at"], series["value"], **look)
            names.append(Name.of(series[["at", "value"]].iloc[-1], str(label), _NAME_OF_OTHERS))
            names += along(series["at"], series["value"])
        lost = name_points(ax, names, _WIDE, _HIGH, _RIGHT)
        add_caption(figure, captions.not_drawn("Names", lost))
    return figure


def _axes(ax: Axes, part: pd.DataFrame) -> pd.DataFrame:
    """Scale the axes of a panel; return its points with the batch as ``at``."""
    part = part.rename(columns={"global_batch_size": "at"})
    curves.batch_axis(ax, part["at"].dropna(), "global batch size (images)")
    accuracy_axis(ax)
    return part


@question("accuracy_vs_batch_size")
class AccuracyOfBatch(Question):
    """Accuracy over the global batch."""

    asks = "How much accuracy do large batches lose?"
    notebook = "16_accuracy_vs_batch_size"
    needs = "a study of schedules or optimisers"
    text = """
{% macro unsure(row) %}
{{ "" if row.decision in ("greater", "less") else " (" ~ row.decision ~ ")" }}
{% endmacro %}
{% macro share(values) %}{{ (100 * values) | span("{:.0f}") }} %{% endmacro %}
{% if not learned %}
{% for batch, values in stated[-1:] %}
- At a batch of {{ "{:,}".format(batch) }} the paper states {{ share(values) }}.
{% endfor %}
{% for batch, values in stated[:-1] %}
- The paper states {{ share(values) }} for a batch of {{ "{:,}".format(batch) }}.
{% endfor %}
{% else %}
{% if ahead %}
- {{ ahead[0].label }} differs from {{ base }} at batch {{ "{:,}".format(batch) }}: by
{% for row in ahead %}
{{ row | estimate("difference", "+.1f") }} points{{ unsure(row) }} with {{ row.evaluation }}
{{ "" if loop.last else " and " }}
{% endfor %}
{% elif both %}
- From batch {{ first }} to {{ batch }},
{% for row in ends %}
{{ row.label }} loses {{ row | estimate("lost", ".1f") }} points of accuracy{{ unsure(row) }}
{{ "" if loop.last else ", " }}
{% endfor %}
{% else %}
- No optimizer and schedule have an accuracy with batch {{ first }} and with {{ batch }}
{% endif %}
.
{% if first != batch %}
- Points of accuracy lost from batch {{ first }} to {{ batch }}:
{% for row in both %}
{{ row.label }} {{ row | estimate("lost", ".1f") }}{{ "" if loop.last else "; " }}
{% else %}
none
{% endfor %}
.
- Conclusively worse than batch {{ first }} from this batch on, with the points lost there (95 %
intervals, not corrected for several batches):
{% for evaluation, rows in costs | groupby("evaluation") %}
with {{ evaluation }}
{% for row in rows %}
{{ row.label }} {{ "none" if not row.worse_from else row.worse_from ~ " (" ~ row.worse_by ~ ")" }}
{{ "" if loop.last else "; " }}
{% endfor %}
{{ "" if loop.last else "; " }}
{% endfor %}
.
{% endif %}
{% if different %}
- Conclusively different from {{ base }} at batch {{ batch }}:
{% for rows in different %}
{% for row in rows if row.decision in ("greater", "less") %}
{{ row.label }} {{ row | estimate("difference", "+.1f") }} points{{ "" if loop.last else ", " }}
{% else %}
none
{% endfor %}
with {{ rows[0].evaluation }};
{% endfor %}
others are {{ others }}.
{% endif %}
{% endif %}
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        return batch_points(tables.runs, tables.paper)

    def draw(self, points: pd.DataFrame) -> Figure:
        """Return V over the global batch: ours, or else what others state (the paper's Fig. 8b)."""
        ours = points[points["source"] == "measured"]
        if ours[["value", "diverged_value"]].isna().all(axis=None):
            return _draw_others(self.title(points), points)
        hidden = points["panel"].nunique() - ours["panel"].nunique()
        return _draw_ours(self.title(points), ours, captions.not_drawn("Panels", hidden))

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        """Return a row per way to learn and evaluation, with a column for each batch.

        The ways with the most batches come first.
        """
        ours = points[(points["source"] == "measured") & (points["n"] > 0)]
        shown = in_percent(ours if len(ours) else points[points["source"] == "stated"])
        sizes = sorted(shown["global_batch_size"].unique())
        heads = {size: f"top-1 (%), batch {size}" for size in sizes}
        rows = []
        keys = ["study", "label", "evaluation"]
        for name, own in shown.groupby(keys, dropna=False):
            texts = [cell_text(row, "value") for row in own.to_dict("records")]
            known = dict(zip(own["global_batch_size"].map(heads), texts, strict=True))
            runs = captions.counted("", own["n"].dropna())
            rows.append(dict(zip(keys, name, strict=True)) | known | {"n": runs})
        rows.sort(key=len, reverse=True)
        return pd.DataFrame(rows, columns=["label", "evaluation", *heads.values(), "n"])

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        stated = points[points["source"] == "stated"].groupby("global_batch_size")["value"]
        return answers(points) | {"stated": [*stated]}
