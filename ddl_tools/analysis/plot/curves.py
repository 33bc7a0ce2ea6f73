"""Inside a panel: axes, lines with intervals, and the values that the paper states."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from ddl_tools.analysis.configurations import CONFIGURATION
from ddl_tools.analysis.plot import style
from ddl_tools.analysis.plot.canvas import handles

WHO = "framework_strategy"  # column of colours and markers
_APART = 0.02  # of the axis, between marks at one place
_ROOM = 0.02  # beyond the values of an axis of shares
_PALE = 0.4  # of a statement that contradicts another
_LINE_OF_TEXT = 0.05  # of an axis from 0 to 1


def rank_axis(ax: Axes, ranks: Iterable[float], label: str = "ranks G", most: int = 6) -> None:
    """Scale x by powers of two from the fewest to the most ranks, `most` ticks after the first."""
    counts = [float(count) for count in ranks] or [1.0, 4.0]
    low, high = np.floor(np.log2(min(counts))), np.ceil(np.log2(max(counts)))
    ax.set_xscale("log", base=2)
    margin = 0.05 * (high - low) + 0.2
    ax.set_xlim(2 ** (low - margin), 2 ** (high + margin))
    step = max(1, np.ceil((high - low) / most))
    ax.xaxis.set_major_locator(FixedLocator(list(2 ** np.arange(low, high + 1, step))))
    plain_ticks(ax.xaxis)
    ax.set_xlabel(label)


def batch_axis(ax: Axes, sizes: Iterable[float], label: str) -> None:
    """Scale x by powers of two, with a tick at each batch size that has room for its number."""
    ax.set_xscale("log", base=2)
    ticks: list[float] = []
    for size in sorted(set(map(float, sizes)), reverse=True):
        if not ticks or size * np.sqrt(2) <= ticks[-1]:
            ticks.append(size)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    plain_ticks(ax.xaxis)
    ax.margins(x=0.08)
    ax.set_xlabel(label)


def rate_axis(ax: Axes, values: pd.Series, label: str = "throughput (images/s)") -> None:
    """Scale y logarithmically with round ticks, some room above and below `values`."""
    known = values[values > 0]
    low, high = (known.min(), known.max()) if len(known) else (1.0, 10.0)
    ax.set_yscale("log", base=10)
    ax.set_ylim(low / 1.5, high * 1.5)
    log_ticks(ax.yaxis, low, high)
    ax.set_ylabel(label)


def share_axis(ax: Axes, values: pd.Series, most: float = np.inf) -> None:
    """Scale y by tenths, from just below the least of `values` to just above the largest."""
    known = values.dropna()
    low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    low, high = np.floor(10 * (low - _ROOM)) / 10, np.ceil(10 * (high + _ROOM)) / 10
    ax.set_ylim(max(low, 0), min(high, most))


def log_ticks(axis: Any, low: float, high: float) -> None:
    """Give a logarithmic axis from `low` to `high` round ticks, a few."""
    steps = {2.5: range(1, 10), 5: (1, 2, 3, 5, 7), 500: (1, 2, 5)}
    subs = next((subs for span, subs in steps.items() if high < span * low), (1,))
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    plain_ticks(axis, style.compact)


def plain_ticks(axis: Any, text: Any = None) -> None:
    """Write the ticks of an axis as plain numbers, or as `text` writes them, without minor ones."""
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(text or (lambda value, _: f"{value:g}")))


def intervals(table: pd.DataFrame) -> np.ndarray:
    """Return how far low and high are from value, for `errorbar`; an endless interval goes far."""
    high = table["high"].replace(np.inf, 1e9)
    ends = np.array([table["value"] - table["low"], high - table["value"]], dtype=float)
    return np.clip(ends, 0, None)


def line(ax: Axes, x: pd.Series, table: pd.DataFrame, look: dict[str, Any]) -> None:
    """Draw value, low and high of a table over `x` as a line with bars."""
    bars = {"capsize": 2.5, "elinewidth": 1.2, "zorder": 4}
    ax.errorbar(x.astype(float), table["value"], yerr=intervals(table), **bars | look)


def lines(ax: Axes, table: pd.DataFrame, x: str, by: str, looks: style.Looks, **look: Any) -> None:
    """Draw a `line` over column `x` for each value of `by`, side by side where they share places.

    The x axis must have its final scale.
    """
    table = table.sort_values(x)
    for number, (name, one) in enumerate(looks.items()):
        part = table[(table[by] == name) & table["value"].notna()]
        if len(part):
            line(ax, apart(ax, part[x], number, len(looks)), part, one | look)


def apart(ax: Axes, places: pd.Series, number: int, of: int) -> pd.Series:
    """Return places on x moved a little for one of several series, by 3 % of the axis at most."""
    scale = ax.xaxis.get_transform()
    width = np.ptp(scale.transform(np.array(ax.get_xlim())))
    step = min(_APART, 0.06 / max(of - 1, 1)) * width
    moved = scale.transform(places.to_numpy(dtype=float)) + step * (number - (of - 1) / 2)
    return pd.Series(scale.inverted().transform(moved), places.index)


def draw_measured(ax: Axes, table: pd.DataFrame, whole: pd.DataFrame) -> None:
    """Draw a line per configuration, in the looks that it has in the `whole` figure."""
    looks, loaders = style.strategy_looks(whole[WHO]), set(whole["loader"])
    series = table[table["n"] > 0].groupby(CONFIGURATION, sort=True)
    for number, (_, part) in enumerate(series):
        first, part = part.iloc[0], part.sort_values("world_size")
        look = style.loader_look(first["loader"], first["data_format"], loaders)
        look |= looks[first[WHO]]
        line(ax, apart(ax, part["world_size"], number, series.ngroups), part, look)


def draw_stated(ax: Axes, table: pd.DataFrame, whole: pd.DataFrame) -> None:
    """Draw each statement of the paper, see `mark_stated`, with its name."""
    looks = style.strategy_looks(whole[WHO])
    statements = table.sort_values("value").groupby(["world_size", "statement"], sort=False)
    taken: dict[tuple[int, bool], float] = {}  # where the next name has room, left and right
    for (ranks, name), rows in statements:
        row, x = rows.iloc[0], float(ranks)
        mark_stated(ax, rows, looks)
        about: dict[str, Any] = {"textcoords": "offset points", "fontsize": 6, "color": "#444444"}
        if row["world_size_min"] < x:
            middle = (row["world_size_min"] * x) ** 0.5
            ax.annotate(name, (middle, row["value"]), (0, 2), ha="center", **about)
            continue
        right = row["bound"] == "value"
        y = max(row["value"], taken.get((ranks, right), 0.0))
        taken[ranks, right] = y + _LINE_OF_TEXT
        ax.annotate(
            name,
            (x, y),
            (9 if right else -6, 0),
            va="center",
            ha="left" if right else "right",
            **about,
        )


def mark_stated(ax: Axes, rows: pd.DataFrame, looks: style.Looks) -> None:
    """Draw the rows of a statement of the paper: open marks, crosses, arrows for bounds.

    A statement about several frameworks is a mark for each, one around the other; a bound on
    several is one arrow, in no one's colour.
    """
    row = rows.iloc[0]
    named = [looks[one] for one in rows[WHO].dropna().unique()] or [style.UNNAMED_LOOK]
    alpha = 1.0 if pd.isna(row["contradiction"]) else _PALE
    if row["bound"] != "value":
        _bound(ax, row, (named[0] if len(named) == 1 else style.UNNAMED_LOOK)["color"], alpha)
        return
    for number, look in enumerate(named):
        shape = {"marker": "x"} if row["source"] == "derived" else {}
        ax.plot(
            float(row["world_size"]),
            row["value"],
            **look | shape,
            alpha=alpha,
            linestyle="none",
            markerfacecolor="none",
            markersize=5 + 3.5 * number,
        )


def _bound(ax: Axes, row: pd.Series, colour: str, alpha: float) -> None:
    ends = sorted({float(row["world_size_min"]), float(row["world_size"])})
    look: dict[str, Any] = {"color": colour, "alpha": alpha, "linewidth": 1.0}
    ax.plot(ends, [row["value"]] * len(ends), marker="_", markersize=7, **look)
    up = 9 if row["bound"] == "lower" else -9
    for end in ends:
        ax.annotate(
            "",
            (end, row["value"]),
            (0, up),
            textcoords="offset points",
            arrowprops={"arrowstyle": "<|-", "shrinkA": 0, "shrinkB": 0, **look},
        )


def draw_ideals(ax: Axes, table: pd.DataFrame) -> list[float]:
    """Draw where proportional scaling from the base of each configuration leads; return its ends.

    Only of configurations with a second number of ranks.
    """
    ends: list[float] = []
    for _, part in table[table["value"].notna()].groupby(CONFIGURATION):
        most = float(table["world_size"].max())
        base = part[part["world_size"] == part["base_world_size"]]
        if len(part) > 1 and len(base):
            ranks, value = float(base["world_size"].iloc[0]), base["value"].iloc[0]
            ends.append(value * most / ranks)
            ax.plot([ranks, most], [value, ends[-1]], **style.IDEAL)
    return ends


def legend(points: pd.DataFrame, ideal: str) -> list[Line2D]:
    """Return the handles of a points table: only what occurs in it."""
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    theirs = points[points["source"] != "measured"]
    looks = style.strategies_named(style.strategy_looks(points[WHO]))
    made = []
    if len(ours):
        used = {style.strategy_name(name) for name in ours[WHO].unique()}
        made += handles({name: look for name, look in looks.items() if name in used})
        made += _loaders(ours, set(points["loader"]))
    if len(theirs):
        used = {style.strategy_name(name) for name in theirs[WHO].dropna().unique()}
        stated = {name: look for name, look in looks.items() if name in used}
        if theirs[WHO].isna().any():
            stated[style.UNNAMED] = style.UNNAMED_LOOK
        made += handles(stated, ", paper" if len(ours) else "", markerfacecolor="none")
        if (theirs["source"] == "derived").any():
            cross = {"marker": "x", "color": style.UNNAMED_LOOK["color"]}
            made += handles({"derived from the paper": cross})
    return [*made, Line2D([], [], **style.IDEAL, label=ideal)]


def _loaders(ours: pd.DataFrame, among: set[str]) -> list[Line2D]:
    formats, made = style.formats_differ(ours), []
    for loader in style.loaders(ours["loader"]):
        for read in style.formats(ours.loc[ours["loader"] == loader, "data_format"]):
            look = style.loader_look(loader, read, among) | {"color": "#555555", "marker": "o"}
            name = style.loader_name(loader, read, formats) + ("" if formats else " loader")
            made.append(Line2D([], [], label=name, **look))
    return made
