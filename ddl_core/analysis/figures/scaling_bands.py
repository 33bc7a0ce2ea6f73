"""What all that is known says of 1 to 4096 workers: stated and measured points, and the band."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.analysis.plot import bands, scales
from ddl_core.analysis.plot.canvas import frame, styled
from ddl_core.analysis.scaling_data import Panel, points_of, read_scaling
from ddl_core.records.paths import SCALING

_LOOKS = {"measured": bands.FILLED, "stated": bands.OPEN, "emulated": bands.EMULATED}
_NAMES = {
    "measured here": bands.FILLED, "stated by the paper": bands.OPEN, "emulated": bands.EMULATED
}  # fmt: skip
_AXES = {"parallel_efficiency": "parallel efficiency E", "throughput": "throughput (images/s)"}


_PANELS = [
    Panel("ResNet50, DALI (paper)", "resnet50, dali_cpu", "throughput"),
    Panel("ResNet152, DALI (paper)", "resnet152, dali_cpu", "throughput"),
    Panel("ResNet50, DALI (CPU) (paper)", "resnet50, dali_cpu", "parallel_efficiency"),
    Panel("ResNet50, DALI (GPU) (paper)", "resnet50, dali_gpu", "parallel_efficiency"),
    Panel("ResNet50, native (paper)", "resnet50, native", "parallel_efficiency"),
    Panel("ResNet50, native, two CPU cores", "laptop, resnet50, native", "throughput"),
    Panel("EMULATED, 20 Mbit/s", "box, ddp, 20 Mbit/s", "parallel_efficiency"),
    Panel("EMULATED, 20 Mbit/s", "box, ddp, 20 Mbit/s", "throughput"),
]


def points(directory: Path = SCALING) -> pd.DataFrame:
    """Return bands, stated and measured values of every panel, as data/scaling/ has them.

    Raises
    ------
    DataError
        If the table is missing.
    """
    table = read_scaling(directory / "bands.csv", "ddl_core.scaling.advice.committed")
    return points_of(table, _PANELS, _AXES)


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return the bands with the points that they rest on, a panel per series."""
    panels = list(points["panel"].unique())
    figure, axes = frame(
        "What would 1 to 4096 workers do, by all that is known?",
        [name.split(": ")[0] for name in panels],
        [1.6] * ((len(panels) + 1) // 2),
        bands.legend(_NAMES, "stated bound", peer=False),
        _caption(),
    )
    for name, ax in zip(panels, axes, strict=True):
        part = points[points["panel"] == name]
        quantity = part["quantity"].iloc[0]
        if quantity == "throughput":
            scales.rate_axis(ax, part[["value", "low", "high"]].stack())
        else:
            ax.set_ylim(0, max(1.15, 1.02 * part["high"].max()))
        ax.set_ylabel(_AXES[quantity])
        bands.draw_panel(ax, part, _LOOKS)
    return figure


def _caption() -> list[str]:
    return [
        "Nothing is held out here (scaling_prediction holds out): the model of each panel is "
        "fitted to all points of it, the paper's to its Table 2 as well. PyTorch-DDP.",
        "Band: 90 % of a single run, by profile likelihood (docs/scaling.md).",
        "Throughput of the paper: 90 x 1,281,167 images / stated runtime. Stated efficiencies "
        "are relative to 4 GPUs, of several strategies; where they contradict the runtimes (C2), "
        "the model lies between.",
        "Measured here: 32 px, batch 16, one core a worker; beyond two workers the curve is of "
        "more such machines, joined as fast as the two cores are, which nobody measured: it shows "
        "how little two workers tell.",
        "EMULATED: nodes of one machine, links of 20 Mbit/s, compute that sleeps 3 s a step, "
        "gradients 64 times smaller than ResNet50's (docs/emulation.md).",
    ]
