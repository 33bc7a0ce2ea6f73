"""Shares of CUDA kernel time by what the kernels do: the paper's Table 2 and its figure."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from ddl_core.analysis.paper import SYSTEM, Paper
from ddl_core.analysis.plot import curves, style
from ddl_core.analysis.plot.canvas import STATED_ONLY, frame, handles, styled

KERNELS = {
    "allreduce": "all-reduce (NCCL)",
    "io": 'data ("I/O")',
    "cudnn": "cuDNN",
    "rest": "all other (our 100 % - the sum)",
}
COPY_ERROR = "C6"  # docs/reading_the_paper.md
_LOADERS = {
    name: {"marker": marker, "linestyle": style.loader_line(name)}
    for name, marker in (("native", "o"), ("dali", "s"))
}
_OPEN: dict[str, Any] = {"markerfacecolor": "white", "markersize": 4.5, "markeredgewidth": 1.0}


def points(paper: Paper) -> pd.DataFrame:
    """Return Table 2 in long form: one row per network, loader, number of GPUs and kind.

    Parameters
    ----------
    paper
        Its ``profile`` has one row per row of Table 2, in percent.

    Returns
    -------
    pandas.DataFrame
        ``value`` is a share of the time in CUDA kernels, 0 to 1. ``suspect`` says that it or its
        twin in another row is probably a copying error; ``rest`` is what the table leaves to 100 %.
    """
    table = paper.profile.rename(columns=lambda name: name.removesuffix("_percent"))
    table["rest"] = 100 - table[["allreduce", "io", "cudnn"]].sum(axis=1)
    keys = ["strategy", "loader", "model", "world_size", "place", "contradiction"]
    long = table.melt(keys, list(KERNELS), var_name="kind", value_name="value")
    # Two rows have these two in common; which of them is the copy is open.
    repeated = long["contradiction"].str.contains(rf"\b{COPY_ERROR}\b", na=False)
    suspect = repeated & long["kind"].isin(["io", "cudnn"])
    source = long["kind"].map(lambda kind: "derived" if kind == "rest" else "stated")
    return long.assign(value=long["value"] / 100, suspect=suspect, source=source, hardware=SYSTEM)


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return the shares over GPUs, a panel per network."""
    models = list(points["model"].unique())
    figure, axes = frame(
        "What does the GPU spend its time on, as workers are added? (Table 2)",
        [style.model_name(name) for name in models],
        [1.6] * ((len(models) + 1) // 2),
        _legend(points),
        [
            "Stated by the paper for PyTorch-DDP on JUWELS Booster, 64 images per GPU: shares of "
            "the time in CUDA kernels, Nsight Systems, 10 epochs (5 on 4 GPUs). Kernels only: time "
            "in which the GPU has nothing to do is in no share, so a loader that is too slow does "
            "not show as data; the others wait for the slowest rank in the all-reduce [C7].",
            "Crossed: two rows share these values, one of them probably by a copying error [C6]. "
            "[C...]: docs/reading_the_paper.md.",
        ],
        note=STATED_ONLY,
    )
    for name, ax in zip(models, axes, strict=True):
        _panel(ax, points[points["model"] == name])
    return figure


def _panel(ax: Axes, part: pd.DataFrame) -> None:
    curves.rank_axis(ax, part["world_size"])
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_ylabel("share of kernel time")
    for (loader, kind), line in part.groupby(["loader", "kind"]):
        look = _LOADERS[str(loader)] | {"color": style.KERNEL_COLOURS[str(kind)]}
        ax.plot(line["world_size"], line["value"], **look, **_OPEN)
    doubted = part[part["suspect"]]
    ax.plot(doubted["world_size"], doubted["value"], "kx", markersize=8, linestyle="none")


def _legend(points: pd.DataFrame) -> list[Line2D]:
    kinds = {
        name: {"color": style.KERNEL_COLOURS[kind], "linestyle": "solid"}
        for kind, name in KERNELS.items()
    }
    loaders = {style.loader_name(name): _LOADERS[name] for name in points["loader"].unique()}
    return [*handles(kinds), *handles(loaders, color="black", **_OPEN)]
