"""What the scaling model predicts from few GPUs, from 1 to 4096, beside what was stated of many."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddl_core.analysis.plot import scales
from ddl_core.analysis.plot.canvas import frame, styled
from ddl_core.errors import DataError
from ddl_core.records.paths import SCALING

_BAND, _MODEL, _PEER = "#cfe3f1", "#0072B2", "#999999"
_FITTED: dict[str, Any] = {"marker": "o", "color": "#000000", "linestyle": "none", "markersize": 4}
_HELD = _FITTED | {"markerfacecolor": "white", "markeredgewidth": 1.1}
_BOUNDS = {"lower": "$\\uparrow$", "upper": "$\\downarrow$"}
_PEER_LINE: Any = (0, (1, 1.5))
_RANGE = (1, 4096)
_DLPERF = (
    "Oneflow-Inc/DLPerf, PyTorch DDP, NVIDIA V100 16 GB, 8 per node, fp32, native, "
    "loader workers per node: 8"
)


class _Panel(NamedTuple):
    """What a panel shows: a series of data/scaling/ and a quantity of it."""

    title: str
    series: str
    quantity: str


_PANELS = [
    _Panel("ResNet50, DALI (paper)", "resnet50, dali", "parallel_efficiency"),
    _Panel("ResNet152, DALI (paper)", "resnet152, dali", "parallel_efficiency"),
    _Panel("ResNet50, native (paper)", "resnet50, native", "parallel_efficiency"),
    _Panel("ResNet50, DALI (paper)", "resnet50, dali", "all_reduce_share"),
    _Panel("ResNet50, native (paper)", "resnet50, native", "all_reduce_share"),
    _Panel("ResNet50, native, 8 V100 a node (DLPerf)", _DLPERF, "throughput_per_gpu"),
]
_AXES = {
    "parallel_efficiency": "parallel efficiency E",
    "all_reduce_share": "all-reduce / kernel time",
    "throughput_per_gpu": "images/s of a GPU",
}


def points(directory: Path = SCALING) -> pd.DataFrame:
    """Return bands, stated values and peers of every panel, as data/scaling/ has them.

    Returns
    -------
    DataFrame
        ``source`` is ``model`` (with low and high), ``peer``, ``fitted`` or ``stated``, and
        ``bound`` tells what of these is a bound.

    Raises
    ------
    DataError
        If a table is missing.
    """
    table = _read(directory / "curves.csv")
    parts = [
        table[(table["series"] == panel.series) & (table["quantity"] == panel.quantity)].assign(
            panel=f"{panel.title}: {_AXES[panel.quantity]}"
        )
        for panel in _PANELS
    ]
    columns = ["panel", "source", "series", "quantity", "world_size", "bound"]
    return pd.concat(parts, ignore_index=True)[[*columns, "value", "low", "high"]]


def _read(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[""])
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; write it with "
            "`python -m ddl_core.scaling.committed`"
        ) from None


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return the bands with what was fitted and what was held out, a panel per series."""
    panels = list(points["panel"].unique())
    figure, axes = frame(
        "What do few GPUs tell about many? The scaling model from 1 to 4096",
        [name.split(": ")[0] for name in panels],
        [1.6] * ((len(panels) + 1) // 2),
        _legend(),
        _caption(),
    )
    for name, ax in zip(panels, axes, strict=True):
        _panel(ax, points[points["panel"] == name])
    return figure


def _panel(ax: Axes, part: pd.DataFrame) -> None:
    scales.worker_axis(ax, _RANGE)
    ax.set_ylabel(_AXES[part["quantity"].iloc[0]])
    by_source = {str(name): rows.sort_values("world_size") for name, rows in part.groupby("source")}
    model = by_source["model"]
    ax.fill_between(model["world_size"], model["low"], model["high"], color=_BAND, linewidth=0)
    ax.plot(model["world_size"], model["value"], color=_MODEL, zorder=3)
    if "peer" in by_source:
        peer = by_source["peer"]
        ax.plot(peer["world_size"], peer["value"], color=_PEER, linestyle=_PEER_LINE, zorder=2)
    for source, look in (("fitted", _FITTED), ("stated", _HELD)):
        for bound, rows in by_source.get(source, part.iloc[:0]).groupby("bound"):
            marker = (
                {"marker": _BOUNDS[bound], "markersize": 8, "markeredgewidth": 0.3}
                if bound in _BOUNDS
                else {}
            )
            ax.plot(rows["world_size"], rows["value"], **look | marker, zorder=4)
    top = 1.15 if part["quantity"].iloc[0] != "throughput_per_gpu" else None
    ax.set_ylim(0, top)


def _legend() -> Sequence[Artist]:
    line: dict[str, Any] = {"color": _MODEL}
    return [
        Line2D([], [], label="model", **line),
        Patch(facecolor=_BAND, label="its 90 % band"),
        Line2D([], [], label="power law", color=_PEER, linestyle=_PEER_LINE),
        Line2D([], [], label="fitted", **_FITTED),
        Line2D([], [], label="held out", **_HELD),
        Line2D(
            [],
            [],
            label="held-out bound",
            **_HELD | {"marker": "$\\uparrow$", "markersize": 8, "markeredgewidth": 0.3},
        ),
    ]


def _caption() -> list[str]:
    return [
        "Filled: what the model and the power law were fitted to, 64 GPUs and fewer (paper), 16 "
        "and fewer (DLPerf). Open: stated values that only judge. Arrows: stated bounds.",
        "Band: 90 % of a single measured value, by profile likelihood; where it opens, the fitted "
        "values do not tell what limits more GPUs (docs/scaling.md).",
        "E relative to 4 GPUs. The paper states no E from 8 to 64 GPUs: E follows from the shares "
        "of Table 2 and the overlap of PyTorch-DDP's buckets.",
        "Several stated values at one number of GPUs are of several strategies, DALI modes or "
        "places that contradict each other.",
    ]
