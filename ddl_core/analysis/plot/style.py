"""How things look and what they are called: one mapping for all figures.

Colours are from Okabe and Ito (2008), chosen so that their grey values differ as well; every
strategy also has its own marker and every loader its own line.
"""

from typing import Any

import pandas as pd
from matplotlib.colors import to_hex, to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

SEPARATOR = " · "  # in a panel's name, between what it shows and where that was measured

STRATEGY_NAMES = {
    "single": "single process",
    "ddp": "PyTorch-DDP",
    "horovod": "Horovod",
    "deepspeed": "DeepSpeed",
}
STRATEGY_COLOURS = {
    "single": "#000000",
    "ddp": "#0072B2",
    "horovod": "#E69F00",
    "deepspeed": "#009E73",
}
STRATEGY_MARKERS = {"single": "D", "ddp": "o", "horovod": "s", "deepspeed": "^"}

LOADER_NAMES = {
    "native": "native",
    "turbo": "turbo",  # native's files and order, decoded by libjpeg-turbo, 8-bit resize of torch
    "memory": "memory",
    "dali": "DALI",  # the paper, where it does not say CPU or GPU
    "dali_cpu": "DALI (CPU)",
    "dali_gpu": "DALI (GPU)",
    "synthetic": "synthetic",
}
LOADER_LINES: dict[str, Any] = {
    "native": "solid",
    "turbo": (0, (2.5, 1)),
    "memory": (0, (8, 1.5)),
    "dali": (0, (5, 2)),
    "dali_cpu": (0, (5, 2)),
    "dali_gpu": (0, (5, 2, 1, 2)),
    "synthetic": (0, (1, 1.5)),
}
# How a measured marker is filled; the rest is white.
LOADER_FILLS = {
    "native": "full",
    "turbo": "top",
    "memory": "none",
    "dali": "left",
    "dali_cpu": "left",
    "dali_gpu": "right",
    "synthetic": "bottom",
}

FORMAT_NAMES = {"folder": "folders", "tfrecord": "TFRecord"}
# Many small files, few large ones: sizes of marker and line in points.
FORMAT_MARKER_SIZES = {"folder": 6.0, "tfrecord": 8.0}
FORMAT_LINE_WIDTHS = {"folder": 1.4, "tfrecord": 2.0}

MODEL_NAMES = {
    "resnet8": "ResNet8",
    "resnet18": "ResNet18",
    "resnet44": "ResNet44",
    "resnet50": "ResNet50",
    "resnet101": "ResNet101",
    "resnet152": "ResNet152",
    "alexnet": "AlexNet",
    "googlenet": "GoogLeNet",
}

# Share of the strategy's colour, where a figure compares models: the larger, the darker.
MODEL_SHADES = {
    "resnet8": 0.35,
    "resnet44": 0.4,
    "alexnet": 0.45,
    "googlenet": 0.5,
    "resnet18": 0.55,
    "resnet50": 0.65,
    "resnet101": 0.8,
    "resnet152": 1.0,
}

DATASET_NAMES = {
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "imagenet": "ImageNet",
    "sample": "sample set",
}

SCHEDULE_NAMES = {
    "step": "step",
    "cosine": "cosine",
    "exponential": "exponential",
    "constant": "constant rate",
}
SCHEDULE_COLOURS = {
    "step": "#0072B2",
    "cosine": "#E69F00",
    "exponential": "#009E73",
    "constant": "#000000",
}
SCHEDULE_MARKERS = {"step": "o", "cosine": "s", "exponential": "^", "constant": "D"}
OPTIMIZER_NAMES = {"sgd": "SGD", "lars": "LARS", "lamb": "LAMB"}
# An adaptive optimiser has a colour of its own, whatever its schedule.
OPTIMIZER_COLOURS = {"lars": "#CC79A7", "lamb": "#56B4E9"}
OPTIMIZER_LINES: dict[str, Any] = {"sgd": "solid", "lars": (0, (5, 2)), "lamb": (0, (1, 1.5))}

# What a CUDA kernel does.
KERNEL_COLOURS = {
    "allreduce": "#D55E00",
    "io": "#56B4E9",
    "cudnn": "#000000",
    "rest": "#999999",
}

# What an epoch's time is spent on, in the order of a step: name and colour. What trains is grey.
SPENT_LOOKS = {
    "start": ("loader starts", "#0072B2"),
    "data": ("waiting for data", "#56B4E9"),
    "compute": ("forward, backward", "#444444"),
    "transfer": ("transfer", "#D55E00"),
    "waiting": ("waiting for slower workers", "#E69F00"),
    "update": ("update", "#999999"),
    "end": ("end of epoch", "#009E73"),
    "evaluation": ("evaluation", "#CC79A7"),
}
# The same of the steps that a profiler watched.
SHARE_LOOKS = {
    "compute": ("compute", "#444444"),
    "transfer": SPENT_LOOKS["transfer"],
    "waiting": SPENT_LOOKS["waiting"],
    "copies": ("copies", "#CC79A7"),
    "data": SPENT_LOOKS["data"],
    "other": ("other calls", "#999999"),
    "idle": ("idle", "#e5e5e5"),
}

# Sources of data/published/accuracy.csv with several batch sizes.
PUBLISHED_NAMES = {
    "Goyal et al. 2017, arXiv:1706.02677": "Goyal et al., ResNet101",
    "NUS-HPC-AI-Lab/LARS-ImageNet-PyTorch": "LARS (NUS-HPC-AI-Lab)",
    "google-deepmind/dm-haiku": "haiku",
}
PUBLISHED_MARKERS = {
    "Goyal et al., ResNet101": "v",
    "LARS (NUS-HPC-AI-Lab)": "P",
    "haiku": "X",
}

# Where a statement of the paper names no strategy.
UNNAMED = "framework not named"
UNNAMED_COLOUR = "#666666"
UNNAMED_MARKER = "h"

# Loader alone and training alone: ticks, the second one dotted as the synthetic loader's line.
HALF_NAMES = {"loading": "loader alone", "training": "training on synthetic data"}
HALF_LINES: dict[str, Any] = {"loading": "solid", "training": LOADER_LINES["synthetic"]}
HALF_COLOUR = "#333333"
BOUND_COLOUR, IN_TURNS_COLOUR = "#ececec", "#d4d4d4"

IDEAL: dict[str, Any] = {"color": "#999999", "linewidth": 1.0, "zorder": 1}

# Sizes in inches and points: two figures side by side fill the width of a page, and a figure
# scaled to a text column keeps legible letters.
WIDTH = 7.2
CAPTION_POINTS = 7.0
RC: Any = {  # matplotlib's own type lists every key
    # A family by name: which font "sans-serif" stands for differs between machines.
    "font.family": ["DejaVu Sans"],
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 6.0,
    "text.usetex": False,
    "mathtext.fontset": "dejavusans",
    # Letters as outlines: an SVG looks the same whatever fonts its reader has.
    "svg.fonttype": "path",
    # No random ids, and no compressed streams in the PDF: zlib's output differs between builds.
    "svg.hashsalt": "ddl_core",
    "pdf.compression": 0,
    "savefig.dpi": 200,
    "figure.dpi": 100,
}


def colour(strategy: str | None) -> str:
    """Return the colour of a strategy; None is "not named"."""
    return STRATEGY_COLOURS[strategy] if strategy else UNNAMED_COLOUR


def marker(strategy: str | None) -> str:
    """Return the marker of a strategy; None is "not named"."""
    return STRATEGY_MARKERS[strategy] if strategy else UNNAMED_MARKER


def strategy_name(strategy: str | None) -> str:
    """Return what people call a strategy; None is "not named"."""
    return STRATEGY_NAMES[strategy] if strategy else UNNAMED


def way_name(optimizer: str, schedule: str) -> str:
    """Return what people call a way to learn, e.g. ``"SGD, cosine"``."""
    return f"{OPTIMIZER_NAMES[optimizer]}, {SCHEDULE_NAMES[schedule]}"


def way_look(optimizer: str, schedule: str) -> dict[str, Any]:
    """Return colour, marker and line of a way to learn."""
    hue = OPTIMIZER_COLOURS.get(optimizer, SCHEDULE_COLOURS[schedule])
    return {
        "color": hue,
        "marker": SCHEDULE_MARKERS[schedule],
        "linestyle": OPTIMIZER_LINES[optimizer],
    }


def formats_differ(table: pd.DataFrame) -> bool:
    """Say whether a table of arms must tell what each loader reads: not if all is folders."""
    return bool((table["data_format"] == "tfrecord").any())


def loader_name(loader: str, data_format: str, formats: bool) -> str:
    """Return what people call a loader, with the format it reads if `formats`."""
    told = formats and loader != "synthetic"  # synthetic data have none
    return LOADER_NAMES[loader] + (f", {FORMAT_NAMES[data_format]}" if told else "")


def text_points(text: str, size: float) -> float:
    """Return the printed width of one line of text in points."""
    font = FontProperties(family=RC["font.family"], size=size)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def tint(hex_colour: str, share: float) -> str:
    """Return the colour mixed with white; `share` is the part of the colour, 0 to 1."""
    red, green, blue = (1 - share * (1 - channel) for channel in to_rgb(hex_colour))
    return str(to_hex((red, green, blue)))
