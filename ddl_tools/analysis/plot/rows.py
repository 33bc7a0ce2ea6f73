"""Figures with a row per configuration: names on the left, numbers on the right."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.markers import CARETLEFT, CARETRIGHT
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.canvas import drawn_panels, frame, styled
from ddl_tools.analysis.plot.curves import intervals
from ddl_tools.estimate import Estimate
from ddl_tools.markdown import aligned
from ddl_tools.names import plural

MOST_ROWS = 60  # in all panels together: about a page
BAR = 0.66  # of a row

_AXES_SHARE = 0.34  # of a figure's width: the least that names and numbers leave the axes
# Inches: between the names of two rows, around names, axes and numbers, and the narrowest name.
_BETWEEN, _AROUND, _NARROWEST = 0.1, 0.2, 1.0
_HEADS, _ROOM = 1.0, 0.3  # rows above the first one: with heads, and without
_NUMBERS: Any = {"family": "DejaVu Sans Mono", "size": 6.5}
_IN_BAR: Any = {"size": 7}
_VALUE: Any = {"linestyle": "none", "elinewidth": 1.2, "capsize": 2, "markersize": 5, "zorder": 5}
_ORDER = ["framework_strategy", "world_size", "loader", "data_format", "hardware"]

Cells = Callable[[pd.DataFrame], list[str]]
"""From the rows of one configuration to the texts beside it, a column each."""


def row_figure(
    title: str,
    points: pd.DataFrame,
    legend: Sequence[Artist],
    caption: Sequence[str],
    heads: Sequence[str],
    cells: Cells,
    label: str,
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """Return a figure, and the axes of each panel that has points with those to draw there.

    Parameters
    ----------
    title, legend, caption
        As `frame` takes them; how many rows found no room is added.
    points
        In the order of drawing. Those of one ``label`` share a row. Its place is in the column
        ``row`` of those returned, from 0 on top; a row with a name of one line is 1 high.
    heads, cells
        Heads and texts of the columns right of the axes.
    label
        Of the x axis.

    A name that would leave the axes too little width is broken into lines.
    """
    panels, tables = drawn_panels(points), []
    for name in panels:
        table = points[points["panel"] == name]
        table = table.assign(row=pd.factorize(table["label"])[0])
        tables.append(table[table["row"] < MOST_ROWS // len(panels)])
    names = [list(table["label"].unique()) for table in tables]
    lost = len(points.drop_duplicates(["panel", "label"])) - sum(map(len, names))
    beside = [
        aligned([list(heads), *(cells(one) for _, one in table.groupby("row"))]) for table in tables
    ]
    numbers = max(style.size_of(line, **_NUMBERS)[0] for panel in beside for line in panel)
    room = max(_NARROWEST, (1 - _AXES_SHARE) * style.WIDTH - numbers - _AROUND)
    font = {"size": rcParams["ytick.labelsize"]}
    names = [[style.wrapped(name, room, **font) for name in panel] for panel in names]
    row = style.size_of("one line", **font)[1] + _BETWEEN
    high = [
        np.array([(style.size_of(name, **font)[1] + _BETWEEN) / row for name in panel])
        for panel in names
    ]
    ends = [max(rows.sum(), 2) for rows in high]
    caption = [*caption, *captions.not_drawn("Rows", lost)]
    above = _HEADS if any(heads) else _ROOM
    heights = [(end + above) * row for end in ends]
    figure, axes = frame(title, panels, heights, legend, caption, line=captions.line(points))
    drawn = []
    for number, ax in enumerate(axes):
        places = high[number].cumsum() - high[number] / 2 - 0.5
        ax.set_yticks(places, names[number], multialignment="right")
        ax.set_ylim(ends[number] - 0.5, -0.5 - above)
        ax.grid(axis="y", visible=False)
        ax.tick_params(axis="y", length=0)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.set_xlabel(label)
        right = ax.secondary_yaxis("right")
        right.set_yticks([-0.5 - above / 2, *places], beside[number], **_NUMBERS)
        right.tick_params(length=0)
        right.spines[:].set_visible(False)
        if len(table := tables[number]):
            drawn.append((ax, table.assign(row=places[table["row"]])))
    return figure, drawn


def draw_values(ax: Axes, table: pd.DataFrame, looks: style.Looks) -> None:
    """Draw value, low and high of the rows of `row_figure` in the looks of their frameworks."""
    for name, part in table.groupby("framework_strategy"):
        ax.errorbar(
            part["value"],
            part["row"],
            xerr=intervals(part),
            **_VALUE | looks[str(name)],
        )


def mark_cut(ax: Axes, table: pd.DataFrame, looks: style.Looks) -> None:
    """Draw an arrowhead where a bar of `draw_values` goes on beyond the axis, which is final."""
    left, right = ax.get_xlim()
    ends = ((left, CARETLEFT, table["low"] < left), (right, CARETRIGHT, table["high"] > right))
    for end, marker, cut in ends:
        for row in table[cut].to_dict("records"):
            ax.plot(
                end,
                row["row"],
                marker=marker,
                markersize=6,
                zorder=6,
                clip_on=False,
                color=looks[row["framework_strategy"]]["color"],
            )


def named(points: pd.DataFrame) -> pd.DataFrame:
    """Return points of configurations with ``framework_strategy``, and a ``label`` of their own.

    In the order of rows: loaders of one framework and number of ranks together. A strategy or a
    number of ranks that all have is in no label; ``shared`` names it.
    """
    table = style.with_framework_strategy(points)
    formats = style.formats_differ(table)
    reads = zip(table["loader"], table["data_format"], strict=True)
    parts = pd.DataFrame(
        {
            "strategy": [style.strategy_name(one) for one in table["framework_strategy"]],
            "loader": [style.loader_name(*one, formats) for one in reads],
            "ranks": [plural(one, "rank") for one in table["world_size"]],
        },
        dtype="string",
    )
    several = len(parts.drop_duplicates()) > 1
    gone = [name for name in ("strategy", "ranks") if several and parts[name].nunique() == 1]
    names = [", ".join(row) for row in parts.drop(columns=gone).itertuples(index=False)]
    shared = ", ".join(parts[gone].iloc[0]) if gone else ""
    table = table.assign(label=pd.array(names, dtype="string"), shared=shared)
    orders = {
        "framework_strategy": style.strategies,
        "loader": style.loaders,
        "data_format": style.formats,
    }
    ranks = table.assign(
        **{name: table[name].map(order(table[name]).index) for name, order in orders.items()}
    )
    return table.loc[ranks.sort_values(_ORDER, kind="stable").index]


@styled
def stacked(
    points: pd.DataFrame,
    title: str,
    looks: Mapping[str, str],
    caption: Sequence[str],
    heads: Sequence[str],
    cells: Cells,
    label: str,
) -> Figure:
    """Return a figure with a bar per configuration, divided by ``cause`` in the colours of `looks`.

    `points` has a row per configuration and cause; the values of a configuration sum to 1. The rest
    is as `row_figure` takes it.
    """
    causes = set(points.loc[points["value"] > 0, "cause"])
    legend = [Patch(label=name, color=hue) for name, hue in looks.items() if name in causes]
    figure, panels = row_figure(title, named(points), legend, caption, heads, cells, label)
    for ax, part in panels:
        rows = np.sort(part["row"].unique())
        left = np.zeros(len(rows))
        for cause, hue in looks.items():
            own = part[part["cause"] == cause].set_index("row")["value"]
            shares = own.reindex(rows, fill_value=0.0).to_numpy()
            bars = ax.barh(rows, shares, BAR, left=left, color=hue, linewidth=0)
            left = left + shares
            red, green, blue = to_rgb(hue)
            ink = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
            ax.bar_label(
                bars, [_number(one) for one in shares], label_type="center", color=ink, **_IN_BAR
            )
        ax.set_xlim(0, 1)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure


def _number(share: float) -> str:
    """Return the number of a bar, nothing if the bar may be too narrow for it."""
    text = f"{share:.0%}"
    room = share * _AXES_SHARE * style.WIDTH
    return text if style.size_of(text, **_IN_BAR)[0] < room else ""


def count_text(row: Any) -> str:
    """Return how many runs a row has, and how many of it were lost."""
    return f"{row['n']}" + (f", {row['failed']} lost" if row["failed"] else "")


def cell_text(row: Any, name: str) -> str:
    """Return a cell: a number with three digits and its interval, or a text as it is."""
    if not isinstance(row[name], float):
        return "" if pd.isna(row[name]) else str(row[name])
    found = Estimate.of(row, name)
    counts = found.value.is_integer() and math.isnan(found.low)
    return f"{found:.0f}" if counts else str(found)
