"""Amdahl's law over numbers of GPUs with its band, and predicted communication beside emulation."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddl_tools.analysis.plot import curves, style
from ddl_tools.analysis.plot.canvas import frame, styled
from ddl_tools.records.paths import committed
from ddl_tools.scaling import emulated, measured, paper
from ddl_tools.scaling.amdahl import Band, Observation, fit_efficiency, fit_throughput
from ddl_tools.scaling.configuration import MAX_EXTRAPOLATION

_BAND, _LAW = "#cfe3f1", "#0072B2"
_BOUNDS = {"lower": "$\\uparrow$", "upper": "$\\downarrow$"}
_MARK: dict[str, Any] = {
    "marker": "o", "color": "#000000", "linestyle": "none", "markersize": 4
}  # fmt: skip
_STATED = _MARK | {"markerfacecolor": "white", "markeredgewidth": 1.1}
_EMULATED = _MARK | {"marker": "s", "color": "#D55E00"}
_LOOKS = {"measured": _MARK, "stated": _STATED, "emulated": _EMULATED}
_AXES = {"parallel_efficiency": "parallel efficiency E", "throughput": "throughput (images/s)"}
_HEIGHT = 1.25  # inches
_MAX_E = 1.3

# Of the paper: network, strategy and loader.
_PAPER = (
    ("resnet50", "ddp", "dali_cpu"),
    ("resnet50", "ddp", "dali_gpu"),
    ("resnet152", "ddp", "dali_cpu"),
    ("resnet50", "horovod", "native"),
)
_MEASURED = ("resnet50", "ddp", "native")
_LINKS_MBIT = 12.0
_FRAMEWORKS = ("PyTorch-DDP", "DeepSpeed, ZeRO stage 0", "DeepSpeed, ZeRO stage 1")


def points() -> pd.DataFrame:
    """Return the law, the calculated efficiency and the values of every panel.

    A panel of runs that are not in data/ is left out.

    `DataError` if a table of the paper is missing. `RecordError` if a record cannot be read.

    Returns
    -------
    DataFrame
        ``source`` is ``law`` (with low and high), ``calculated``, or the origin of a value; `bound`
        says whether a value is a bound.
    """
    table = pd.concat([*map(_stated, _PAPER), *_laptop(), *_emulation()], ignore_index=True)
    numbers = ["value", "low", "high"]
    table[numbers] = table[numbers].map(lambda value: float(f"{value:.4g}"))
    table["panel"] += ": " + table["quantity"].map(_AXES)
    table["bound"] = table["bound"].fillna("value")
    return table[["panel", "source", "quantity", "world_size", "bound", *numbers]]


def _name(model: str, strategy: str, loader: str, origin: str) -> str:
    return (
        f"{style.model_name(model)}, {style.strategy_name(strategy)}, {style.loader_name(loader)} "
        f"({origin})"
    )


def _fitted(
    law: Callable[[Sequence[int]], Band],
    least: int,
    observed: Sequence[Observation],
    source: str,
    beyond: int = MAX_EXTRAPOLATION,
) -> pd.DataFrame:
    """Return the law at each power of two times `least`, and the observed values.

    It ends at `beyond` times the largest observed number of ranks.
    """
    steps = int(np.log2(beyond * max(one.ranks for one in observed) / least))
    sizes = [least * 2**power for power in range(steps + 1)]
    band = pd.DataFrame({"source": "law", "world_size": sizes, **law(sizes)._asdict()})
    values = pd.DataFrame(observed)[["ranks", "value", "bound"]]
    return pd.concat([band, values.rename(columns={"ranks": "world_size"}).assign(source=source)])


def _stated(configuration: tuple[str, str, str]) -> pd.DataFrame:
    observed = paper.stated(*configuration)
    law = fit_efficiency(observed, paper.BASE).efficiency
    table = _fitted(law, paper.BASE, observed, "stated")
    return table.assign(panel=_name(*configuration, "paper"), quantity="parallel_efficiency")


def _laptop() -> list[pd.DataFrame]:
    model, strategy, loader = _MEASURED
    tree = committed()
    observed = [
        Observation(record.world_size, rate)
        for record, rate, _ in measured.trained(tree, model, "sample")
        if (record.study, record.spec.strategy, record.spec.loader) == ("laptop", strategy, loader)
        and rate
    ]
    if not observed:
        return []
    law = fit_throughput(observed).throughput
    table = _fitted(law, 1, observed, "measured", beyond=1)  # the machine has no more cores
    panel = _name(*_MEASURED, "two CPU cores, published")
    return [table.assign(panel=panel, quantity="throughput")]


def _emulation() -> list[pd.DataFrame]:
    if emulated.STUDY not in committed().studies():
        return []
    steps = [one for one in emulated.validate() if one.link_mbit == _LINKS_MBIT]
    tables = []
    for name in _FRAMEWORKS:
        rows = [("calculated", 1, 1.0)]
        for one in steps:
            if one.framework == name:
                rows.append(("calculated", one.nodes, one.predicted_efficiency))
                rows.append(("emulated", one.nodes, one.measured_efficiency))
        table = pd.DataFrame(rows, columns=["source", "world_size", "value"])
        tables.append(table.assign(panel=f"EMULATED, {name}", quantity="parallel_efficiency"))
    return tables


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return a panel for each configuration."""
    panels = list(points["panel"].unique())
    figure, axes = frame(
        _agreement(points),
        [name.split(": ")[0] for name in panels],
        [_HEIGHT] * ((len(panels) + 1) // 2),
        [
            Line2D([], [], label="Amdahl's law", color=_LAW),
            Patch(facecolor=_BAND, label="90 % band of one value"),
            Line2D([], [], label="calculated, nothing fitted", color=_LAW, linestyle="--"),
            Line2D([], [], label="measured here", **_MARK),
            Line2D([], [], label="stated, or from stated times", **_STATED),
            Line2D([], [], label="stated bound", **_STATED | {"marker": _BOUNDS["lower"]}),
            Line2D([], [], label="emulated", **_EMULATED),
        ],
        [
            "Each law is fitted to all values and bounds of its panel. E of the paper is relative "
            "to 4 GPUs; its times and its E at 1024 contradict each other (C2). EMULATED: links of "
            f"{_LINKS_MBIT:g} Mbit/s; calculated from the step on one node.",
        ],
    )
    for name, ax in zip(panels, axes, strict=False):
        _panel(ax, points[points["panel"] == name])
    return figure


def _panel(ax: Axes, part: pd.DataFrame) -> None:
    quantity, sizes = part["quantity"].iloc[0], part["world_size"]
    curves.rank_axis(ax, (int(sizes.min()), int(sizes.max())))
    lines = {name: rows.sort_values("world_size") for name, rows in part.groupby("source")}
    if "law" in lines:
        law = lines["law"]
        ax.fill_between(law["world_size"], law["low"], law["high"], color=_BAND, linewidth=0)
        ax.plot(law["world_size"], law["value"], color=_LAW, zorder=3)
    if "calculated" in lines:
        calculated = lines["calculated"]
        ax.plot(calculated["world_size"], calculated["value"], color=_LAW, linestyle="--")
    for source, look in _LOOKS.items():
        for bound, rows in lines.get(source, part.iloc[:0]).groupby("bound"):
            marker = {"marker": _BOUNDS[bound], "markersize": 8} if bound in _BOUNDS else {}
            ax.plot(rows["world_size"], rows["value"], **look | marker, zorder=4)
    if quantity == "throughput":
        curves.rate_axis(ax, part[["value", "low", "high"]].stack())
    else:
        ax.set_ylim(0, _MAX_E)
    ax.set_ylabel(_AXES[quantity])


def _agreement(points: pd.DataFrame) -> str:
    """Return how far calculation and emulation differ, and how many values the bands hold.

    Each law is fitted to all values of its panel: holding them is no prediction.
    """
    keys = ["panel", "world_size"]
    by_source = {name: part.set_index(keys) for name, part in points.groupby("source")}
    known = points[points["source"].isin(["stated", "measured"]) & points["bound"].eq("value")]
    law = by_source["law"].loc[list(known[keys].itertuples(index=False, name=None))]
    inside = (law["low"].to_numpy() <= known["value"]) & (known["value"] <= law["high"].to_numpy())
    held = (
        f"Bands of Amdahl's law hold {int(inside.sum())} of the {len(known)} values that they are "
        "fitted to; no other value tests them"
    )
    if "emulated" not in by_source:
        return held
    emulated = by_source["emulated"]["value"]
    error = (by_source["calculated"]["value"].loc[emulated.index] / emulated - 1).abs().max()
    where = f"on links of {_LINKS_MBIT:g} Mbit/s"
    return f"{held}; {where} calculated and emulated efficiency agree within {100 * error:.1f} %"
