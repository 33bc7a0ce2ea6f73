"""Amdahl's law over numbers of GPUs with its band, and predicted communication beside emulation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
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
_LINKS_MBIT = 20.0
_FRAMEWORKS = ("PyTorch-DDP", "DeepSpeed, ZeRO stage 0", "DeepSpeed, ZeRO stage 1")


def points() -> pd.DataFrame:
    """Return the law, the calculated efficiency and the values of every panel.

    A panel of runs that are not in data/ is left out.

    Returns
    -------
    DataFrame
        ``source`` is ``law`` (with low and high), ``calculated``, or the origin of a value; `bound`
        says whether a value is a bound.

    Raises
    ------
    DataError
        If a table of the paper is missing.
    RecordError
        If a record cannot be read.
    """
    rows = [row for part in (*map(_stated, _PAPER), _laptop(), _emulation()) for row in part]
    table = pd.DataFrame(rows)
    numbers = ["value", "low", "high"]
    table[numbers] = table[numbers].map(lambda value: float(f"{value:.4g}"))
    return table


def _name(model: str, strategy: str, loader: str, origin: str) -> str:
    return (
        f"{style.model_name(model)}, {style.strategy_name(strategy)}, {style.loader_name(loader)} "
        f"({origin})"
    )


def _row(panel: str, source: str, quantity: str, ranks: int, value: float, **more: Any) -> Any:
    return {
        "panel": f"{panel}: {_AXES[quantity]}", "source": source, "quantity": quantity,
        "world_size": ranks, "bound": "value", "value": value, "low": np.nan, "high": np.nan,
    } | more  # fmt: skip


def _values(panel: str, source: str, quantity: str, observed: Sequence[Observation]) -> list[Any]:
    return [
        _row(panel, source, quantity, one.ranks, one.value, bound=one.bound) for one in observed
    ]


def _law(panel: str, quantity: str, sizes: Sequence[int], band: Band) -> list[Any]:
    ends = zip(sizes, band.value, band.low, band.high, strict=True)
    return [
        _row(panel, "law", quantity, ranks, value, low=low, high=high)
        for ranks, value, low, high in ends
    ]


def _sizes(least: int, largest: int) -> list[int]:
    """Return each power of two times `least` up to four times the largest known size."""
    steps = int(np.log2(MAX_EXTRAPOLATION * largest / least))
    return [least * 2**power for power in range(steps + 1)]


def _stated(arm: tuple[str, str, str]) -> list[Any]:
    panel, quantity = _name(*arm, "paper"), "parallel_efficiency"
    observed = paper.stated(*arm)
    posterior = fit_efficiency(observed, paper.BASE)
    sizes = _sizes(paper.BASE, max(one.ranks for one in observed))
    return _law(panel, quantity, sizes, posterior.efficiency(sizes)) + _values(
        panel, "stated", quantity, observed
    )


def _laptop() -> list[Any]:
    model, strategy, loader = _MEASURED
    tree = committed()
    observed = [
        Observation(record.world_size, rate)
        for record in measured.trained(tree, model, "sample")
        if (record.study, record.spec.strategy, record.spec.loader) == ("laptop", strategy, loader)
        and (rate := measured.throughput(tree, record))
    ]
    if not observed:
        return []
    panel, quantity = _name(*_MEASURED, "two CPU cores"), "throughput"
    sizes = _sizes(1, max(one.ranks for one in observed))
    return _law(panel, quantity, sizes, fit_throughput(observed).throughput(sizes)) + _values(
        panel, "measured", quantity, observed
    )


def _emulation() -> list[Any]:
    if emulated.STUDY not in committed().studies():
        return []
    steps, quantity = emulated.validate(), "parallel_efficiency"
    found = []
    for name in _FRAMEWORKS:
        panel = f"EMULATED, {name}"
        own = [one for one in steps if (one.framework, one.link_mbit) == (name, _LINKS_MBIT)]
        found.append(_row(panel, "calculated", quantity, 1, 1.0))
        for one in own:
            found += [
                _row(panel, "calculated", quantity, one.nodes, one.predicted_efficiency),
                _row(panel, "emulated", quantity, one.nodes, one.measured_efficiency),
            ]
    return found


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return a panel for each configuration."""
    panels = list(points["panel"].unique())
    figure, axes = frame(
        _agreement(points),
        [name.split(": ")[0] for name in panels],
        [_HEIGHT] * ((len(panels) + 1) // 2),
        _legend(),
        _caption(),
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


def _legend() -> list[Artist]:
    return [
        Line2D([], [], label="Amdahl's law", color=_LAW),
        Patch(facecolor=_BAND, label="90 % band of one value"),
        Line2D([], [], label="calculated, nothing fitted", color=_LAW, linestyle="--"),
        Line2D([], [], label="measured here", **_MARK),
        Line2D([], [], label="stated by the paper", **_STATED),
        Line2D([], [], label="stated bound", **_STATED | {"marker": _BOUNDS["lower"]}),
        Line2D([], [], label="emulated", **_EMULATED),
    ]


def _agreement(points: pd.DataFrame) -> str:
    """Return how far calculation and emulation differ, and how many values the bands hold."""
    keys = ["panel", "world_size"]
    by_source = {name: part.set_index(keys) for name, part in points.groupby("source")}
    known = points[points["source"].isin(["stated", "measured"]) & points["bound"].eq("value")]
    law = by_source["law"].loc[list(known[keys].itertuples(index=False, name=None))]
    inside = (law["low"].to_numpy() <= known["value"]) & (known["value"] <= law["high"].to_numpy())
    told = f"Bands of Amdahl's law hold {int(inside.sum())} of {len(known)} values"
    if "emulated" not in by_source:
        return told
    emulated = by_source["emulated"]["value"]
    error = (by_source["calculated"]["value"].loc[emulated.index] / emulated - 1).abs().max()
    return f"{told}; calculated efficiency is within {100 * error:.1f} % of the emulated one"


def _caption() -> list[str]:
    return [
        "Each law is fitted to the values and bounds of its panel. E of the paper is relative to "
        "4 GPUs; its times and its E at 1024 contradict each other (C2). EMULATED: links of 20 "
        "Mbit/s; calculated from the step on one node.",
    ]
