"""Validation accuracy over epochs, at the smallest and the largest batch of each study."""

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from ddl_core.analysis.arms import ORIGIN_TYPES
from ddl_core.analysis.figures import accuracy
from ddl_core.analysis.plot import captions, marks, style
from ddl_core.analysis.plot.canvas import drawn_panels, frame, styled

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


def points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return V after each epoch of every run, at the smallest and the largest batch of a study.

    Columns: `CURVES`; ``mean`` is over the runs of the same arm, diverged ones left out.
    """
    table = accuracy.made(runs)
    rows = []
    for _, study in table[table["status"] == "completed"].groupby("study"):
        several = study["model"].nunique() > 1
        ends = study["global_batch_size"].agg(["min", "max"])
        own = study[study["global_batch_size"].isin(ends)]
        own = own.sort_values("global_batch_size", kind="stable")
        for run in own.to_dict("records"):
            shared = {name: run[name] for name in CURVES if name in run}
            shared["panel"] = _panel(run, several)
            epochs, values = (
                accuracy.numbers(run[f"evaluated_{name}"]) for name in ("epochs", "top1")
            )
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


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return V over epochs at the smallest and the largest batch of each study (Fig. 9)."""
    panels, looks = drawn_panels(points), accuracy.looks(points)
    figure, axes = frame(
        "How does the validation accuracy grow, at a small and at a large batch?",
        panels,
        [2.2] * ((len(panels) + 1) // 2),
        [*marks.handles(looks, markersize=5), *accuracy.crosses(points)],
        [
            "Question of the paper's Fig. 9, which shows a batch of 65,536; it states no value of "
            "the curves.",
            *_measured(points),
            *captions.panels_not_drawn(points, panels),
        ],
    )
    for ax in axes:
        ax.set_ylim(0, 1.05 * points["value"].max() if len(points) else 1)
        ax.set_xlabel("epoch")
        accuracy.accuracy_axis(ax)
    drawn = points[points["panel"].isin(panels)]
    for ax, (_, part) in zip(axes, drawn.groupby("panel", sort=False), strict=False):
        ends = part[part["diverged"]].drop_duplicates("run_id", keep="last")
        look = {"estimator": None, "ax": ax, **marks.told_apart("label", looks), "markers": None}
        sns.lineplot(part, x="epoch", y="value", units="run_id", linewidth=0.7, alpha=0.5, **look)
        means = part.drop_duplicates(["label", "epoch"])
        sns.lineplot(means, x="epoch", y="mean", linewidth=2.0, **look)
        accuracy.draw_crosses(ax, ends, "epoch", "value", looks)
    return figure


def _measured(points: pd.DataFrame) -> list[str]:
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
