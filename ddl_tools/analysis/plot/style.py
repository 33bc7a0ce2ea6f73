"""How things look and what they are called: one mapping for all figures.

Colours are from Okabe and Ito (2008), chosen so that their grey values differ as well; every
strategy also has its own marker and every loader its own line. What has no look gets a spare one
and its own name.

A framework is a strategy of a library: where all runs are PyTorch's, ``"horovod"`` says it, else
``"tensorflow horovod"``. A strategy of several libraries has its marker in all of them; its colour
is PyTorch's there, and in another library that of the strategy which only this one has.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.registry import FRAMEWORKS, LOADERS, STRATEGIES
from ddl_tools.names import called, describe, phrase

SEPARATOR = " · "  # in a panel's name, between what it shows and where that was measured

STRATEGY_COLOURS = {
    "single": "#000000",
    "ddp": "#0072B2",
    "horovod": "#E69F00",
    "deepspeed": "#009E73",
    "fsdp": "#7B3294",
    "multiworker": "#CC79A7",
    "spmd": "#56B4E9",
    "kvstore": "#D55E00",
    "torchrun": "#8B5A2B",
    "srun": "#5C3A1A",
}
STRATEGY_MARKERS = dict(zip(STRATEGY_COLOURS, "Dos^*vPX>8", strict=True))
_OWN_COLOURS = {
    entry.frameworks[0]: STRATEGY_COLOURS[name]
    for name, entry in STRATEGIES.items()
    if len(entry.frameworks) == 1 and entry.frameworks != ("torch",) and name in STRATEGY_COLOURS
}
# Where a statement of the paper names no strategy.
UNNAMED = "framework not named"
UNNAMED_LOOK: dict[str, Any] = {"color": "#666666", "marker": "h"}

# The paper does not always say whether its DALI decoded on the CPU or on the GPU: "dali".
_LOADER_LINES: dict[str, tuple[Any, str]] = {  # with the filled part of a measured marker
    "native": ("solid", "full"),
    "turbo": ((0, (2.5, 1)), "top"),
    "memory": ((0, (8, 1.5)), "none"),
    "dali_cpu": ((0, (5, 2)), "left"),
    "dali_gpu": ((0, (5, 2, 1, 2)), "right"),
    "synthetic": ((0, (1, 1.5)), "bottom"),
    "dali": ((0, (5, 2)), "left"),
}
# Many small files, few large ones: sizes of marker and line in points.
FORMAT_SIZES = {"folder": (6.0, 1.4), "tfrecord": (8.0, 2.0)}
_SPARE_SIZES = (7.0, 1.7)

SCHEDULE_COLOURS = {
    "step": "#0072B2",
    "cosine": "#E69F00",
    "exponential": "#009E73",
    "constant": "#000000",
}
_SCHEDULE_MARKERS = dict(zip(SCHEDULE_COLOURS, "os^D", strict=True))
# An adaptive optimiser has a colour of its own, whatever its schedule.
_OPTIMIZER_COLOURS = {"lars": "#CC79A7", "lamb": "#56B4E9", "adamw": "#D55E00"}
_OPTIMIZER_LINES: dict[str, Any] = {
    "sgd": "solid",
    "lars": (0, (5, 2)),
    "lamb": (0, (1, 1.5)),
    "adamw": (0, (5, 2, 1, 2)),
}

# What a CUDA kernel does.
KERNEL_COLOURS = {"allreduce": "#D55E00", "io": "#56B4E9", "cudnn": "#000000", "rest": "#999999"}
# What time is spent on, in the order of a step. What trains is grey.
TIME_COLOURS = {
    "data": "#56B4E9",
    "compute": "#444444",
    "transfer": "#D55E00",
    "waiting for slower ranks": "#E69F00",
    "copies": "#CC79A7",
    "other": "#999999",
    "idle": "#e5e5e5",
}
# Sources of data/published/accuracy.csv with several batch sizes: name and marker.
PUBLISHED = {
    "Goyal et al. 2017, arXiv:1706.02677": ("Goyal et al., ResNet101", "v"),
    "NUS-HPC-AI-Lab/LARS-ImageNet-PyTorch": ("LARS (NUS-HPC-AI-Lab)", "P"),
    "google-deepmind/dm-haiku": ("haiku", "X"),
}

# For what has no look of its own; no strategy and no schedule above has one of these.
SPARE_COLOURS = ["#ca9161", "#949494", "#fbafe4", "#ece133"]  # of seaborn's "colorblind"
SPARE_MARKERS = ["<", "d", "p"]
SPARE_LINES: list[Any] = [(0, (3, 1, 1, 1)), (0, (1, 3)), (0, (6, 1, 1, 1, 1, 1))]

BOUND_COLOUR = "#ececec"
IDEAL: dict[str, Any] = {"color": "#999999", "linewidth": 1.0, "zorder": 1}
# Frame and words of a figure that holds nothing but what others state.
PALE, PALE_INK = "#999999", "#666666"

# Sizes in inches and points: two figures side by side fill the width of a page, and a figure
# scaled to a text column keeps legible letters.
WIDTH = 7.2
STATED_WIDTH = 5.4  # of a figure that holds nothing but what others state
CAPTION_POINTS = 7.0
# What differs from seaborn's theme, see `canvas.THEME`: importing seaborn takes a second, which the
# notebook of a run need not wait for.
PAGE: Any = {  # matplotlib's own type lists every key
    # A family by name: which font "sans-serif" stands for differs between machines.
    "font.family": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 6.0,
    "text.usetex": False,
    # Letters of one width at every resolution, so that what fits one file fits all.
    "text.hinting": "none",
    # Names of studies and machines may hold dollars.
    "text.parse_math": False,
    # Letters as text: an SVG can be searched and edited.
    "svg.fonttype": "none",
    # No random ids, and no compressed streams in the PDF: zlib's output differs between builds.
    "svg.hashsalt": "ddl_core",
    "pdf.compression": 0,
    "savefig.dpi": 200,
    "figure.dpi": 100,
}

Look = TypeVar("Look")
Looks = dict[str, dict[str, Any]]
"""How each name of a figure looks, as a line of matplotlib, in the order of its legend."""


def listed(names: Iterable[str], known: Collection[str]) -> list[str]:
    """Return each of `names` once: those in `known` first, as listed there, the others sorted."""
    there = set(names)
    return [name for name in known if name in there] + sorted(there - set(known))


def strategies(names: Iterable[str]) -> list[str]:
    """Return strategies, or frameworks, in the order of legends and rows."""
    pairs = [f"{library} {name}" for library in FRAMEWORKS for name in STRATEGIES]
    return listed(names, [*STRATEGIES, *pairs])


def loaders(names: Iterable[str]) -> list[str]:
    """Return loaders in the order of legends and rows."""
    return listed(names, [*LOADERS, "dali"])


def formats(names: Iterable[str]) -> list[str]:
    """Return data formats in the order of legends and rows."""
    return listed(names, FORMAT_SIZES)


def schedules(names: Iterable[str]) -> list[str]:
    """Return schedules in the order of legends."""
    return listed(names, SCHEDULE_COLOURS)


def optimizers(names: Iterable[str]) -> list[str]:
    """Return optimisers in the order of legends."""
    return listed(names, _OPTIMIZER_LINES)


def with_framework_strategy(table: pd.DataFrame) -> pd.DataFrame:
    """Return configurations with ``framework_strategy``: ``"ddp"``, ``"torch ddp"`` by others.

    A row without a strategy, as some that the paper states, has none.
    """
    libraries = table["framework"].fillna("torch")
    if (libraries == "torch").all():
        return table.assign(framework_strategy=table["strategy"])
    return table.assign(framework_strategy=libraries + " " + table["strategy"])


def _own_or_spare(
    name: str, looks: Mapping[str, Look], spare: Sequence[Look], among: Iterable[str]
) -> Look:
    """Return a name's look, else a spare one: the sorted names without a look share these."""
    if name in looks:
        return looks[name]
    return spare[sorted({*among, name} - looks.keys()).index(name) % len(spare)]


def strategy_looks(column: pd.Series) -> Looks:
    """Return colour and marker of each strategy or framework of a column, as legends list them."""
    names = strategies(column.dropna())
    among = {*STRATEGIES, *(name.rpartition(" ")[2] for name in names)}
    looks: Looks = {}
    for name in names:
        library, _, strategy = name.rpartition(" ")
        colour = _own_or_spare(strategy, STRATEGY_COLOURS, SPARE_COLOURS, among)
        marker = _own_or_spare(strategy, STRATEGY_MARKERS, SPARE_MARKERS, among)
        looks[name] = {"color": _OWN_COLOURS.get(library, colour), "marker": marker}
    return looks


def strategies_named(looks: Looks) -> Looks:
    """Return the looks of strategies or frameworks by what people call these."""
    return {strategy_name(strategy): look for strategy, look in looks.items()}


def strategy_name(framework: str) -> str:
    """Return what people call a strategy, or a framework."""
    library, _, strategy = framework.rpartition(" ")
    return called(library, strategy) if library else phrase("strategy", strategy)


def loader_look(loader: str, data_format: str, among: Iterable[str] = ()) -> dict[str, Any]:
    """Return line and filling of a loader of `among`, and their sizes for what it reads."""
    size, width = FORMAT_SIZES.get(data_format, _SPARE_SIZES)
    spare = [(line, "full") for line in SPARE_LINES]
    line, filled = _own_or_spare(loader, _LOADER_LINES, spare, {*LOADERS, *among})
    return {
        "linestyle": line,
        "fillstyle": filled,
        "markerfacecoloralt": "white",
        "markersize": size,
        "linewidth": width,
    }


def loader_name(loader: str, data_format: str = "", formats: bool = False) -> str:
    """Return what people call a loader, with the format it reads if `formats`."""
    return describe({"loader": loader} | ({"data_format": data_format} if formats else {}))


def formats_differ(table: pd.DataFrame) -> bool:
    """Say whether names need the format that a loader reads: not if all read folders."""
    return bool((table["data_format"].dropna() != "folder").any())


def model_name(model: str) -> str:
    """Return what people call a network."""
    return phrase("model", model)


def dataset_name(dataset: str) -> str:
    """Return what people call a data set."""
    return phrase("dataset", dataset)


def way_name(optimizer: str, schedule: str) -> str:
    """Return what people call a way to learn, e.g. ``"SGD, cosine"``."""
    return describe({"optimizer": optimizer, "schedule": schedule})


def way_look(optimizer: str, schedule: str, among: Iterable[str] = ()) -> dict[str, Any]:
    """Return colour, marker and line of a way to learn, its schedule one of `among`."""
    hue = _own_or_spare(schedule, SCHEDULE_COLOURS, SPARE_COLOURS, among)
    return {
        "color": _OPTIMIZER_COLOURS.get(optimizer, hue),
        "marker": _own_or_spare(schedule, _SCHEDULE_MARKERS, SPARE_MARKERS, among),
        "linestyle": _OPTIMIZER_LINES.get(optimizer, SPARE_LINES[0]),
    }


def compact(value: float, _position: int | None = None) -> str:
    """Return two or three digits with a unit: ``"12.5"``, ``"2.5k"``, ``"580k"``, ``"1M"``."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{float(f'{value / limit:.2g}'):g}{unit}"
    return f"{value:.3g}"


def size_of(text: str, **font: Any) -> tuple[float, float]:
    """Return width and height of a text in inches, as matplotlib draws it in a font."""
    figure = Figure()
    box = figure.text(0, 0, text, **font).get_window_extent()
    return box.width / figure.dpi, box.height / figure.dpi


def wrapped(text: str, inches: float, *, commas: bool = True, **font: Any) -> str:
    """Return a text in lines of some width at most, broken after commas where possible.

    A sentence is broken between words, with ``commas=False``. An interval in brackets stays in one
    line.
    """
    lines = [""]

    def add(part: str, *smaller: str) -> None:
        if size_of((lines[-1] + part).rstrip(), **font)[0] <= inches:
            lines[-1] += part
        elif smaller and size_of(part.rstrip(), **font)[0] > inches:
            for piece in re.findall(smaller[0], part):
                add(piece, *smaller[1:])
        else:
            lines.append(part)

    words = r"(?:\[[^\[\]]*\]|\S)+ ?"
    parts = [r".+?(?:, (?![^\[]*\])|$)", words] if commas else [words]
    add(" ".join(text.split()), *parts, ".")
    return "\n".join(line.rstrip() for line in lines if line)
