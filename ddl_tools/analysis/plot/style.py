"""How things look and what they are called: one mapping for all figures.

Colours are from Okabe and Ito (2008), chosen so that their grey values differ as well; every
strategy also has its own marker and every loader its own line. What has no look gets a spare one
and its own name.

A framework is a strategy of a library: where all runs are PyTorch's, ``"horovod"`` says it, else
``"tensorflow horovod"``. A strategy of several libraries has its marker in all of them; its colour
is PyTorch's there, and in another library that of the strategy which only this one has.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pandas as pd
from matplotlib.colors import to_hex, to_rgb

from ddl_core.registry import FRAMEWORKS, LOADERS, MODELS, STRATEGIES, title
from ddl_tools.analysis import looks
from ddl_tools.labels import NAMES, called, phrase

SEPARATOR = " · "  # in a panel's name, between what it shows and where that was measured

STRATEGY_COLOURS, STRATEGY_MARKERS = looks.STRATEGY_COLOURS, looks.STRATEGY_MARKERS
LOADER_LINES, LOADER_FILLS = looks.LOADER_LINES, looks.LOADER_FILLS
MODEL_COLOURS, MODEL_MARKERS = looks.MODEL_COLOURS, looks.MODEL_MARKERS
_OWN_COLOURS = {
    entry.frameworks[0]: looks.STRATEGY_COLOURS[name]
    for name, entry in STRATEGIES.items()
    if len(entry.frameworks) == 1 and entry.frameworks != ("torch",) and name in STRATEGY_COLOURS
}
_PAPERS = {"dali": replace(LOADERS["dali_cpu"], title="DALI")}

FORMAT_NAMES = NAMES["data_format"]
# Many small files, few large ones: sizes of marker and line in points.
FORMAT_MARKER_SIZES = {"folder": 6.0, "tfrecord": 8.0}
FORMAT_LINE_WIDTHS = {"folder": 1.4, "tfrecord": 2.0}

SCHEDULE_NAMES = NAMES["schedule"]
SCHEDULE_COLOURS = {
    "step": "#0072B2",
    "cosine": "#E69F00",
    "exponential": "#009E73",
    "constant": "#000000",
}
SCHEDULE_MARKERS = {"step": "o", "cosine": "s", "exponential": "^", "constant": "D"}
OPTIMIZER_NAMES = NAMES["optimizer"]
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

# For what has no look of its own; no strategy and no schedule above has one of these.
SPARE_COLOURS = ["#ca9161", "#949494", "#fbafe4", "#ece133"]  # of seaborn's "colorblind"
SPARE_MARKERS = ["<", ">", "p"]
SPARE_LINES: list[Any] = [(0, (3, 1, 1, 1)), (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3))]
_SPARE_SIZES = (7.0, 1.7)  # of a format: marker and line

# Where a statement of the paper names no strategy, or no model.
UNNAMED = "framework not named"
UNNAMED_MODEL = "network not named"
UNNAMED_COLOUR = "#666666"
UNNAMED_MARKER = "h"

# Loader alone and training alone.
HALF_NAMES = {"loading": "loader alone", "training": "training on synthetic data"}
HALF_COLOUR = "#333333"
BOUND_COLOUR = "#ececec"

# Frame and words of a figure that holds nothing but what others state.
PALE, PALE_INK = "#999999", "#666666"

IDEAL: dict[str, Any] = {"color": "#999999", "linewidth": 1.0, "zorder": 1}

# Sizes in inches and points: two figures side by side fill the width of a page, and a figure
# scaled to a text column keeps legible letters.
WIDTH = 7.2
STATED_WIDTH = 5.4  # of a figure that holds nothing but what others state
CAPTION_POINTS = 7.0
# What differs from seaborn's theme, see `canvas.THEME`: importing seaborn takes a second, which the
# lab book of a run need not wait for.
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
    "mathtext.fontset": "dejavusans",
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


def with_framework_strategy(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of arms with ``framework_strategy``: ``"ddp"``, or ``"torch ddp"`` by others.

    A row without a strategy, as some that the paper states, has no framework.
    """
    libraries = table["framework"].fillna("torch")
    if (libraries == "torch").all():
        return table.assign(framework_strategy=table["strategy"])
    return table.assign(framework_strategy=libraries + " " + table["strategy"])


def _parts(framework: str) -> tuple[str, str]:
    """Return library, empty where it is not told, and strategy."""
    library, _, strategy = framework.rpartition(" ")
    return library, strategy


def loaders(names: Iterable[str]) -> list[str]:
    """Return loaders in the order of legends and rows."""
    return listed(names, {**LOADERS, **_PAPERS})


def formats(names: Iterable[str]) -> list[str]:
    """Return data formats in the order of legends and rows."""
    return listed(names, FORMAT_NAMES)


def own_or_spare(
    name: str, looks: Mapping[str, Look], spare: Sequence[Look], among: Iterable[str]
) -> Look:
    """Return a name's look, else a spare one: names without a look take turns, sorted."""
    if name in looks:
        return looks[name]
    return spare[sorted({*among, name} - looks.keys()).index(name) % len(spare)]


def colour(framework: str | None, among: Iterable[str] = ()) -> str:
    """Return the colour of a strategy or a framework of `among`; None is "not named"."""
    if framework is None:
        return UNNAMED_COLOUR
    library, strategy = _parts(framework)
    if library in _OWN_COLOURS:
        return _OWN_COLOURS[library]
    return own_or_spare(strategy, STRATEGY_COLOURS, SPARE_COLOURS, _and_strategies(among))


def marker(framework: str | None, among: Iterable[str] = ()) -> str:
    """Return the marker of a strategy or a framework of `among`; None is "not named"."""
    if framework is None:
        return UNNAMED_MARKER
    strategy = _parts(framework)[1]
    return own_or_spare(strategy, STRATEGY_MARKERS, SPARE_MARKERS, _and_strategies(among))


def _and_strategies(among: Iterable[str]) -> set[str]:
    return {*STRATEGIES, *(_parts(name)[1] for name in among)}


def strategy_looks(column: pd.Series) -> Looks:
    """Return colour and marker of each strategy or framework of a column, as legends list them."""
    names = strategies(column.dropna())
    return {name: {"color": colour(name, names), "marker": marker(name, names)} for name in names}


def model_looks(column: pd.Series) -> Looks:
    """Return colour and marker of each network of a table, in the order of legends."""
    names = listed(column.dropna(), MODELS)
    among = {*MODELS, *names}
    return {
        name: {
            "color": own_or_spare(name, MODEL_COLOURS, SPARE_COLOURS, among),
            "marker": own_or_spare(name, MODEL_MARKERS, SPARE_MARKERS, among),
        }
        for name in names
    }


def strategies_named(looks: Looks) -> Looks:
    """Return the looks of strategies or frameworks by what people call these."""
    return {strategy_name(strategy): look for strategy, look in looks.items()}


def strategy_name(framework: str | None) -> str:
    """Return what people call a strategy, or a framework; None is "not named"."""
    if not framework:
        return UNNAMED
    library, strategy = _parts(framework)
    return called(library, strategy) if library else title("strategy", strategy)


def loader_line(loader: str, among: Iterable[str] = ()) -> Any:
    """Return the line style of a loader of `among`."""
    return own_or_spare(loader, LOADER_LINES, SPARE_LINES, {*LOADERS, *among})


def loader_look(loader: str, data_format: str, among: Iterable[str] = ()) -> dict[str, Any]:
    """Return line and filling of a loader of `among`, and their sizes for what it reads."""
    size, width = _SPARE_SIZES
    return {
        "linestyle": loader_line(loader, among),
        "fillstyle": LOADER_FILLS.get(loader, "full"),
        "markerfacecoloralt": "white",
        "markersize": FORMAT_MARKER_SIZES.get(data_format, size),
        "linewidth": FORMAT_LINE_WIDTHS.get(data_format, width),
    }


def loader_name(loader: str, data_format: str = "", formats: bool = False) -> str:
    """Return what people call a loader, with the format it reads if `formats`."""
    told = formats and loader != "synthetic"  # synthetic data have none
    name = _PAPERS[loader].title if loader in _PAPERS else title("loader", loader)
    return f"{name}, {FORMAT_NAMES.get(data_format, data_format)}" if told else name


def formats_differ(table: pd.DataFrame) -> bool:
    """Say whether a table of arms must tell what each loader reads: not if all is folders."""
    return bool((table["data_format"].dropna() != "folder").any())


def model_name(model: str) -> str:
    """Return what people call a network."""
    return title("model", model)


def dataset_name(dataset: str) -> str:
    """Return what people call a data set."""
    return phrase("dataset", dataset)


def schedule_name(schedule: str) -> str:
    """Return what people call a schedule."""
    return phrase("schedule", schedule)


def way_name(optimizer: str, schedule: str) -> str:
    """Return what people call a way to learn, e.g. ``"SGD, cosine"``."""
    return f"{phrase('optimizer', optimizer)}, {schedule_name(schedule)}"


def way_look(optimizer: str, schedule: str, among: Iterable[str] = ()) -> dict[str, Any]:
    """Return colour, marker and line of a way to learn, its schedule one of `among`."""
    hue = own_or_spare(schedule, SCHEDULE_COLOURS, SPARE_COLOURS, among)
    return {
        "color": OPTIMIZER_COLOURS.get(optimizer, hue),
        "marker": own_or_spare(schedule, SCHEDULE_MARKERS, SPARE_MARKERS, among),
        "linestyle": OPTIMIZER_LINES.get(optimizer, SPARE_LINES[0]),
    }


def compact(value: float, _position: int | None = None) -> str:
    """Return two or three digits with a unit: ``"12.5"``, ``"2.5k"``, ``"580k"``, ``"1M"``."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{float(f'{value / limit:.2g}'):g}{unit}"
    return f"{value:.3g}"


def three_digits(value: float) -> str:
    """Return the value as a text has it: ``"7.00"``, ``"16.2"``, ``"126"``, ``"2.46k"``."""
    scaled, unit = (value / 1e3, "k") if value >= 1e3 else (value, "")
    return f"{scaled:#.3g}".rstrip(".") + unit


def tint(hex_colour: str, share: float) -> str:
    """Return the colour mixed with white; `share` is the part of the colour, 0 to 1."""
    red, green, blue = (1 - share * (1 - channel) for channel in to_rgb(hex_colour))
    return str(to_hex((red, green, blue)))
