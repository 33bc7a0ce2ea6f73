"""The figures about learning: schedules, accuracy over batch size, learning curves."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from ddl_core.analysis.plot import captions, style
from ddl_core.analysis.plot.canvas import frame, styled

MOST_PANELS = 6
NOTHING = "nothing measured here yet"
_AXIS_MARGIN = 1.25  # left and right of the first and last batch size
_SIDE_BY_SIDE = 1.05


@styled
def schedules(points: pd.DataFrame) -> Figure:
    """Return the learning rate over epochs of the paper's schedules (its Fig. 8a)."""
    ways = points[["optimizer", "schedule"]].drop_duplicates()
    figure, (ax,) = frame(
        "Which learning rate does each schedule give to each epoch?",
        ["the paper's training on 1024 GPUs"],
        [2.4],
        [
            Line2D([], [], **_line("sgd", name), label=style.SCHEDULE_NAMES[name])
            for name in ways["schedule"]
        ],
        [
            "Question of the paper's Fig. 8a. Drawn from the code that training uses, with the "
            "paper's settings: 0.025 x 1024 at the peak, 5 epochs of linear warm-up, a tenth at "
            "epochs 30, 60 and 80 (step), eq. 1 with a minimum of 0 (cosine), 0.95 an epoch "
            "(exponential). The logarithmic axis shows what Fig. 8a's linear one hides at the end.",
        ],
    )
    for name, way in points.groupby("schedule", sort=False):
        ax.plot(way["epoch"], way["value"], **_line("sgd", name))
    ax.set_yscale("log")
    ax.set_xlabel("epoch")
    ax.set_ylabel("learning rate")
    return figure


@styled
def accuracy_vs_batch_size(points: pd.DataFrame) -> Figure:
    """Return V over the global batch, ours beside what others state (the paper's Fig. 8b)."""
    ours = points[points["source"] == "measured"]
    theirs = points[points["source"] != "measured"]
    panels = _panels(ours)
    names = [*panels, *theirs["panel"].unique()]
    figure, axes = frame(
        "What becomes of the validation accuracy as the batch grows?",
        names,
        [2.2] * (len(panels) - 1) + [2.2, 2.6],
        [*_ways(points), *_others(theirs), *_crosses(ours)],
        [
            "Question of the paper's Fig. 8b.",
            *_measured(ours),
            "Open marks: values that the paper states; its curves were not digitised. Light marks: "
            "other sources, see data/published. The panels differ in data, network and length: "
            "compare shapes, not values.",
        ],
    )
    for name, ax in zip(names, axes, strict=True):
        part = points[points["panel"] == name]
        if len(part):
            _batch_axis(ax, part["global_batch_size"])
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.set_ylabel("top-1 accuracy V")
        arms = list(part[part["source"] == "measured"].groupby("label", sort=False))
        for number, (_, arm) in enumerate(arms):
            _arm(ax, arm, _SIDE_BY_SIDE ** (number - (len(arms) - 1) / 2))
        _stated(ax, part[part["source"] == "stated"])
        for label, series in part[part["source"] == "published"].groupby("label"):
            _series(ax, str(label), series)
    return figure


@styled
def learning_curves(points: pd.DataFrame) -> Figure:
    """Return V over epochs at the smallest and the largest batch of each study (Fig. 9)."""
    panels = list(points["panel"].unique())[:MOST_PANELS] or [NOTHING]
    figure, axes = frame(
        "How does the validation accuracy grow, at a small and at a large batch?",
        panels,
        [2.2] * ((len(panels) + 1) // 2) if len(panels) > 1 else [2.2],
        [*_ways(points), *_crosses(points)],
        [
            "Question of the paper's Fig. 9, which shows a batch of 65,536; it states no value of "
            "the curves. Thick: mean over the runs that did not diverge; thin: each run.",
            *_origin(points),
        ],
    )
    top = points["value"].max() if len(points) else 1.0
    for name, ax in zip(panels, axes, strict=True):
        part = points[points["panel"] == name]
        for _, run in part.groupby("run_id", sort=False):
            look = _line(*_way(run))
            ax.plot(run["epoch"], run["value"], linewidth=0.7, alpha=0.5, **look)
            if run["diverged"].any():
                ax.plot(run["epoch"].iloc[-1], run["value"].iloc[-1], **_cross(look["color"]))
        for _, arm in part.groupby("label", sort=False):
            mean = arm.drop_duplicates("epoch").sort_values("epoch")
            ax.plot(mean["epoch"], mean["mean"], linewidth=2.0, **_line(*_way(arm)))
        ax.set_ylim(0, 1.05 * top)
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.set_xlabel("epoch")
        ax.set_ylabel("top-1 accuracy V")
    return figure


def _panels(ours: pd.DataFrame) -> list[str]:
    return list(ours["panel"].unique())[: MOST_PANELS - 1] or [NOTHING]


def _way(table: pd.DataFrame) -> tuple[str, str]:
    return str(table["optimizer"].iloc[0]), str(table["schedule"].iloc[0])


def _line(optimizer: str, schedule: str) -> dict[str, Any]:
    look = style.way_look(optimizer, schedule)
    return {name: value for name, value in look.items() if name != "marker"}


def _batch_axis(ax: Axes, batches: pd.Series) -> None:
    """Scale x by powers of two, with a tick at each batch size, or at every second or third."""
    sizes = sorted(batches.dropna().unique())
    ax.set_xscale("log", base=2)
    ax.set_xlim(sizes[0] / _AXIS_MARGIN, sizes[-1] * _AXIS_MARGIN)
    ax.xaxis.set_major_locator(FixedLocator([float(size) for size in sizes]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.set_xlabel("global batch size (images)")


def _arm(ax: Axes, arm: pd.DataFrame, shift: float) -> None:
    """Draw the means with their range, and a cross for runs that diverged."""
    look = style.way_look(*_way(arm))
    x = arm["global_batch_size"].to_numpy(dtype=float) * shift
    y = arm["value"].to_numpy(dtype=float)
    bars = [y - arm["low"].to_numpy(dtype=float), arm["high"].to_numpy(dtype=float) - y]
    ax.errorbar(x, y, yerr=bars, capsize=2.5, elinewidth=1.0, markersize=5, zorder=4, **look)
    ax.plot(x, arm["diverged_value"].to_numpy(dtype=float), **_cross(look["color"]))


def _cross(colour: str) -> dict[str, Any]:
    return {"linestyle": "none", "marker": "x", "markersize": 8, "color": colour, "zorder": 5,
            "markeredgewidth": 1.8}  # fmt: skip


def _stated(ax: Axes, table: pd.DataFrame) -> None:
    """Draw the paper's values; at one batch the schedules stand side by side."""
    names = list(style.SCHEDULE_NAMES)
    for row in table.to_dict("records"):
        look = style.way_look("sgd", row["schedule"]) | {"linestyle": "none"}
        shift = 1.09 ** (names.index(row["schedule"]) - 1)
        ax.plot(row["global_batch_size"] * shift, row["value"], markerfacecolor="white",
                markersize=6, zorder=4, **look)  # fmt: skip


def _series(ax: Axes, label: str, series: pd.DataFrame) -> None:
    series = series.sort_values("global_batch_size")
    ax.plot(series["global_batch_size"].astype(float), series["value"], **_other(label), zorder=2)


def _other(label: str) -> dict[str, Any]:
    return {"color": "#999999", "marker": style.PUBLISHED_MARKERS[label], "markersize": 5,
            "linewidth": 1.0}  # fmt: skip


def _ways(points: pd.DataFrame) -> list[Artist]:
    if "source" in points:
        points = points[points["source"] != "published"]
    ways = points[["optimizer", "schedule"]].drop_duplicates()
    order = [(one, two) for one in style.OPTIMIZER_NAMES for two in style.SCHEDULE_NAMES]
    there = set(ways.itertuples(index=False, name=None))
    return [
        Line2D([], [], **style.way_look(*way), markersize=5, label=style.way_name(*way))
        for way in order
        if way in there
    ]


def _others(theirs: pd.DataFrame) -> list[Artist]:
    labels = sorted(theirs.loc[theirs["source"] == "published", "label"].unique())
    return [Line2D([], [], **_other(label), label=label) for label in labels]


def _crosses(table: pd.DataFrame) -> list[Artist]:
    diverged = table["diverged"].fillna(0).astype(int).sum()
    return [Line2D([], [], **_cross(style.UNNAMED_COLOUR), label="diverged")] if diverged else []


def _measured(ours: pd.DataFrame) -> Sequence[str]:
    done = ours[ours["n"] > 0]
    lost = [
        f"{name.capitalize()}: {int(ours[name].sum())} runs"
        + (" (crosses: their V)." if name == "diverged" else ".")
        for name in ("diverged", "failed")
        if ours[name].sum()
    ]
    if done.empty:
        return ["Nothing measured here yet.", *lost]
    return [
        f"Measured: mean of {captions.counted('n', done['n'])} runs, each with its own seed; bars: "
        "the range of these runs.",
        *lost,
        *captions.machines(done),
        captions.commits(done),
    ]


def _origin(points: pd.DataFrame) -> list[str]:
    if points.empty:
        return ["Nothing measured here yet."]
    return [*captions.machines(points), captions.commits(points)]
