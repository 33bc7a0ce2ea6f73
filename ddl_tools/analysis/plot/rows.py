"""Figures with a row per configuration: names on the left, numbers on the right."""

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
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
from ddl_tools.labels import plural
from ddl_tools.markdown import aligned

MOST_ROWS = 60  # in all panels together: about a page
BAR = 0.66  # of a row

_ROW_INCHES, _LINE_INCHES = 0.19, 0.125  # a row with a name of one line, and a further line
_AXES_SHARE = 0.34  # of a figure's width: the least that names and numbers leave the axes
_LEAST_LETTERS = 16  # of a line of a name, however wide the numbers are
# Widths in inches: of a letter of a name, of one of the numbers, and of what lies between.
_NAME_LETTER, _NUMBER_LETTER, _GAPS = 0.057, 0.0544, 0.2
_LEAST_SHARE = 0.07  # of a bar that has room for its number
_NUMBERS: Any = {"family": "DejaVu Sans Mono", "size": 6.5}
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
        In the order of drawing. Those of one ``label`` share a row, which is in the column ``row``
        of those returned, from 0 on top.
    heads, cells
        Heads and texts of the columns right of the axes.
    label
        Of the x axis.

    A name that would leave the axes too little width is broken into lines.
    """
    panels, tables = drawn_panels(points), []
    for name in panels:
        table = points[points["panel"] == name]
        table = table.assign(row=pd.factorize(table["label"])[0].astype(float))
        tables.append(table[table["row"] < MOST_ROWS // len(panels)])
    names = [list(table["label"].unique()) for table in tables]
    lost = len(points.drop_duplicates(["panel", "label"])) - sum(map(len, names))
    beside = [
        aligned([list(heads), *(cells(one) for _, one in table.groupby("row"))]) for table in tables
    ]
    letters = _name_letters(max(len(line) for panel in beside for line in panel))
    names = [[broken(name, letters) for name in panel] for panel in names]
    heights = [(max(len(panel), 2) + 1) * _row_inches(panel) for panel in names]
    caption = [*caption, *captions.not_drawn("Rows", lost)]
    figure, axes = frame(title, panels, heights, legend, caption, line=captions.line(points))
    for ax, panel, lines in zip(axes, names, beside, strict=True):
        ax.set_yticks(range(len(panel)), panel, multialignment="right")
        ax.set_ylim(max(len(panel), 2) - 0.5, -1.5)
        ax.grid(axis="y", visible=False)
        ax.tick_params(axis="y", length=0)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.set_xlabel(label)
        right = ax.secondary_yaxis("right")
        right.set_yticks(range(-1, len(panel)), lines, **_NUMBERS)
        right.tick_params(length=0)
        right.spines[:].set_visible(False)
    return figure, [(ax, table) for ax, table in zip(axes, tables, strict=True) if len(table)]


def broken(name: str, letters: int) -> str:
    """Return a name in lines of at most so many letters, broken after commas where possible."""
    lines: list[str] = []
    for part in re.split(r"(?<=,) ", name):
        for piece in textwrap.wrap(part, letters, break_on_hyphens=False):
            if lines and len(lines[-1]) + 1 + len(piece) <= letters:
                lines[-1] += f" {piece}"
            else:
                lines.append(piece)
    return "\n".join(lines)


def _name_letters(of_numbers: int) -> int:
    """Return how many letters a line of a name may have beside numbers of so many letters."""
    room = (1 - _AXES_SHARE) * style.WIDTH - _GAPS - of_numbers * _NUMBER_LETTER
    return max(_LEAST_LETTERS, int(room / _NAME_LETTER))


def _row_inches(names: Sequence[str]) -> float:
    """Return the height of each row of a panel: that of the name with the most lines."""
    return _ROW_INCHES + _LINE_INCHES * max((name.count("\n") for name in names), default=0)


def draw_values(ax: Axes, table: pd.DataFrame, looks: style.Looks) -> None:
    """Draw value, low and high of the rows of `row_figure` in the looks of their frameworks."""
    for name, part in table.groupby("framework_strategy"):
        ax.errorbar(part["value"], part["row"], xerr=intervals(part), linestyle="none",
                    elinewidth=1.2, capsize=2, markersize=5, zorder=5,
                    **looks[str(name)])  # fmt: skip


def mark_cut(ax: Axes, table: pd.DataFrame, looks: style.Looks) -> None:
    """Draw an arrowhead where a bar of `draw_values` goes on beyond the axis, which is final."""
    left, right = ax.get_xlim()
    ends = ((left, CARETLEFT, table["low"] < left), (right, CARETRIGHT, table["high"] > right))
    for end, marker, cut in ends:
        for row in table[cut].to_dict("records"):
            ax.plot(end, row["row"], marker=marker, markersize=6, zorder=6, clip_on=False,
                    color=looks[row["framework_strategy"]]["color"])  # fmt: skip


def named(points: pd.DataFrame) -> pd.DataFrame:
    """Return points of configurations with ``framework_strategy``, and a ``label`` of their own.

    In the order of rows: loaders of one framework and number of ranks together.
    """
    table = style.with_framework_strategy(points)
    formats = style.formats_differ(table)
    names = [
        f"{style.strategy_name(row['framework_strategy'])}, "
        f"{style.loader_name(row['loader'], row['data_format'], formats)}, "
        f"{plural(row['world_size'], 'rank')}"
        for row in table.to_dict("records")
    ]
    table = table.assign(label=pd.array(names, dtype="string"))
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
        left = np.zeros(int(part["row"].max()) + 1)
        for cause, hue in looks.items():
            own = part[part["cause"] == cause].set_index("row")["value"]
            shares = own.reindex(range(len(left)), fill_value=0.0).to_numpy()
            bars = ax.barh(range(len(left)), shares, BAR, left=left, color=hue, linewidth=0)
            left = left + shares
            red, green, blue = to_rgb(hue)
            ink = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
            numbers = [f"{share:.0%}" if share >= _LEAST_SHARE else "" for share in shares]
            ax.bar_label(bars, numbers, label_type="center", size=7, color=ink)
        ax.set_xlim(0, 1)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure


def count_text(row: Any) -> str:
    """Return how many runs a row has, and how many of it were lost."""
    return f"{row['n']}" + (f", {row['failed']} lost" if row["failed"] else "")


def percent(share: float) -> str:
    """Return a share for people, e.g. ``"12 %"``."""
    return f"{100 * share:.0f} %".replace("-", "\N{MINUS SIGN}")


def cell_text(row: Any, name: str) -> str:
    """Return a cell: a number with three digits and its interval, or a text as it is."""
    if not isinstance(row[name], float):
        return "" if pd.isna(row[name]) else str(row[name])
    found = Estimate.of(row, name)
    counts = found.value.is_integer() and math.isnan(found.low)
    return f"{found:.0f}" if counts else str(found)
