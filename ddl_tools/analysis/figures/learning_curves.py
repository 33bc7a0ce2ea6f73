"""Accuracy over epochs."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddl_tools.analysis.figures.accuracy_runs import made, numbers
from ddl_tools.analysis.figures.columns import ORIGIN, typed
from ddl_tools.analysis.figures.ways import accuracy_axis, crosses, draw_crosses, way_looks
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.canvas import handles, panel_figure, styled

CURVES = typed(
    "panel study optimizer schedule label global_batch_size repeat run_id diverged epochs epoch",
    "value mean", ORIGIN, diverged="boolean",
)  # fmt: skip
_MOST_MARKS = 10  # on one curve


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


@styled
def draw_curves(points: pd.DataFrame) -> Figure:
    """Return V over epochs at the smallest and the largest batch of each study (Fig. 9)."""
    looks = way_looks(points)
    figure, panels = panel_figure(
        _ended(points),
        points,
        [*handles(looks, markersize=5), *crosses(points)],
        ["Thick: mean; thin: each run with its own seed."]
        if len(points) else ["Nothing measured here yet."],
        2.2,
        columns=2,
    )  # fmt: skip
    for ax, part in panels:
        ax.set_ylim(0, 1.05 * points["value"].max() if len(points) else 1)
        ax.set_xlabel("epoch")
        accuracy_axis(ax)
        thin = {"linewidth": 0.7, "alpha": 0.5, "marker": ""}
        for (label, _), run in part.groupby(["label", "run_id"]):
            ax.plot(run["epoch"], run["value"], **looks[str(label)] | thin)
        for label, mean in part.drop_duplicates(["label", "epoch"]).groupby("label"):
            thick = {"linewidth": 2.0, "markersize": 5, "markevery": -(-len(mean) // _MOST_MARKS)}
            ax.plot(mean["epoch"], mean["mean"], **looks[str(label)] | thick)
        ends = part[part["diverged"]].drop_duplicates("run_id", keep="last")
        draw_crosses(ax, ends, "epoch", "value", looks)
    return figure


def _ended(points: pd.DataFrame) -> str:
    """Return the mean accuracies of the last epoch, at each batch size."""
    parts = []
    for batch, part in points[points["mean"].notna()].groupby("global_batch_size"):
        last = part[part["epoch"] == part["epoch"].max()]["mean"]
        parts.append(f"{captions.span(100 * last, '{:.1f}')} % at batch {batch}")
    return "Accuracy ends at " + " and ".join(parts) if parts else "No run has ended"
