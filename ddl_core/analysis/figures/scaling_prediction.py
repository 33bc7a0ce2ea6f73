"""What the scaling model predicts from few GPUs, from 1 to 4096, beside what was stated of many."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddl_core.analysis.plot import bands
from ddl_core.analysis.plot.canvas import frame, styled
from ddl_core.analysis.scaling_data import Panel, points_of, read_scaling
from ddl_core.records.paths import SCALING

_EMULATED = {"emulated, fitted": bands.EMULATED, "emulated, held out": bands.EMULATED_OPEN}
_LOOKS = {"fitted": bands.FILLED, "stated": bands.OPEN, **_EMULATED}
_NAMES = {"fitted": bands.FILLED, "held out": bands.OPEN, **_EMULATED}
_DLPERF = (
    "Oneflow-Inc/DLPerf, PyTorch DDP, NVIDIA V100 16 GB, 8 per node, fp32, native, "
    "loader workers per node: 8"
)


_PANELS = [
    Panel("ResNet50, DALI (paper)", "resnet50, dali", "parallel_efficiency"),
    Panel("ResNet152, DALI (paper)", "resnet152, dali", "parallel_efficiency"),
    Panel("ResNet50, native (paper)", "resnet50, native", "parallel_efficiency"),
    Panel("ResNet50, DALI (paper)", "resnet50, dali", "all_reduce_share"),
    Panel("ResNet50, native (paper)", "resnet50, native", "all_reduce_share"),
    Panel("ResNet50, native, 8 V100 a node (DLPerf)", _DLPERF, "throughput_per_gpu"),
    Panel("EMULATED, DDP, 20 Mbit/s", "box, ddp, 20 Mbit/s", "parallel_efficiency"),
    Panel("EMULATED, DDP, 10 Mbit/s", "box, ddp, 10 Mbit/s", "parallel_efficiency"),
    Panel(
        "EMULATED, DeepSpeed stage 1, 20 Mbit/s",
        "box, deepspeed, stage 1, 20 Mbit/s",
        "parallel_efficiency",
    ),
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
    table = read_scaling(directory / "curves.csv", "ddl_core.scaling.committed")
    return points_of(table, _PANELS, _AXES)


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return the bands with what was fitted and what was held out, a panel per series."""
    panels = list(points["panel"].unique())
    figure, axes = frame(
        "What do few GPUs tell about many? The scaling model from 1 to 4096",
        [name.split(": ")[0] for name in panels],
        [1.6] * ((len(panels) + 1) // 2),
        bands.legend(_NAMES, "held-out bound", peer=True),
        _caption(),
    )
    for name, ax in zip(panels, axes, strict=True):
        _panel(ax, points[points["panel"] == name])
    return figure


def _panel(ax: Axes, part: pd.DataFrame) -> None:
    quantity = part["quantity"].iloc[0]
    ax.set_ylabel(_AXES[quantity])
    bands.draw_panel(ax, part, _LOOKS)
    ax.set_ylim(0, 1.15 if quantity != "throughput_per_gpu" else None)


def _caption() -> list[str]:
    return [
        "Filled: what the model and the power law were fitted to, 64 GPUs and fewer (paper), 16 "
        "and fewer (DLPerf), 4 nodes and fewer with links of 20 and 40 Mbit/s (emulated). Open: "
        "values that only judge. Arrows: stated bounds.",
        "Band: 90 % of a single measured value, by profile likelihood; where it opens, the fitted "
        "values do not tell what limits more GPUs (docs/scaling.md).",
        "E relative to 4 GPUs, emulated: to one node. The paper states no E from 8 to 64 GPUs: E "
        "follows from the shares of Table 2 and the overlap of PyTorch-DDP's buckets.",
        "EMULATED: nodes of one machine, links of so many Mbit/s, compute that sleeps 3 s a step "
        "(docs/emulation.md).",
        "Several stated values at one number of GPUs are of several strategies, DALI modes or "
        "places that contradict each other.",
    ]
