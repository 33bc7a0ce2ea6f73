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

_APART = 0.02  # of the axis, between marks at one place
_FAR = 8  # from the least to the largest value of a setting, and its axis is logarithmic
_MOST_TICKS = 12
_UNNAMED = {"framework_strategy": style.UNNAMED, "model": style.UNNAMED_MODEL}
_UNNAMED_LOOK = {"color": style.UNNAMED_COLOUR, "marker": style.UNNAMED_MARKER}
_PALE = 0.4  # of a statement that contradicts another


def rank_axis(ax: Axes, ranks: Iterable[float], label: str = "ranks G") -> None:
    """Scale x by powers of two from the fewest to the most ranks."""
    counts = [float(count) for count in ranks] or [1.0, 4.0]
    low, high = np.floor(np.log2(min(counts))), np.ceil(np.log2(max(counts)))
    ax.set_xscale("log", base=2)
    margin = 0.05 * (high - low) + 0.2
    ax.set_xlim(2 ** (low - margin), 2 ** (high + margin))
    step = 2 if high - low > 6 else 1
    ax.xaxis.set_major_locator(FixedLocator(list(2 ** np.arange(low, high + 1, step))))
    _plain(ax.xaxis)
    ax.set_xlabel(label)


def value_axis(ax: Axes, values: Iterable[float], label: str) -> None:
    """Scale x for a setting, a tick at each of its values: by powers of two where these go far."""
    places = sorted({float(value) for value in values})
    positive = [place for place in places if place > 0]
    if positive and positive[-1] >= _FAR * positive[0]:
        if places[0] > 0:
            ax.set_xscale("log", base=2)
        else:
            ax.set_xscale("symlog", base=2, linthresh=positive[0])
    ax.xaxis.set_major_locator(FixedLocator(places, nbins=_MOST_TICKS))
    _plain(ax.xaxis)
    ax.margins(x=0.08)
    ax.set_xlabel(label)


def rate_axis(ax: Axes, values: pd.Series, label: str = "throughput (images/s)") -> None:
    """Scale y logarithmically with ticks at 1, 2 and 5, some room above and below `values`."""
    known = values[values > 0]
    low, high = (known.min(), known.max()) if len(known) else (1.0, 10.0)
    ax.set_yscale("log", base=10)
    ax.set_ylim(low / 1.5, high * 1.5)
    log_ticks(ax.yaxis, low, high)
    ax.set_ylabel(label)


def log_ticks(axis: Any, low: float, high: float) -> None:
    """Give a logarithmic axis from `low` to `high` round ticks, a few."""
    steps = {2.5: range(1, 10), 5: (1, 2, 3, 5, 7), 500: (1, 2, 5)}
    subs = next((subs for span, subs in steps.items() if high < span * low), (1,))
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    _plain(axis, style.compact)


def _plain(axis: Any, text: Any = None) -> None:
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


def looks_by(points: pd.DataFrame, by: str) -> style.Looks:
    """Return how the frameworks or the models of a whole figure look: `by` is the column."""
    return {"framework_strategy": style.strategy_looks, "model": style.model_looks}[by](points[by])


def draw_measured(ax: Axes, table: pd.DataFrame, whole: pd.DataFrame, by: str) -> None:
    """Draw each configuration in the looks that it has in the `whole` figure.

    `by` is what colour and marker tell, "framework_strategy" or "model".
    """
    looks, loaders = looks_by(whole, by), set(whole["loader"])
    series = table[table["n"] > 0].groupby(CONFIGURATION, sort=True)
    for number, (_, part) in enumerate(series):
        first, part = part.iloc[0], part.sort_values("world_size")
        look = looks[first[by]] | style.loader_look(first["loader"], first["data_format"], loaders)
        line(ax, apart(ax, part["world_size"], number, series.ngroups), part, look)


def draw_stated(ax: Axes, table: pd.DataFrame, whole: pd.DataFrame, by: str) -> None:
    """Draw every statement of a panel at its own place: open marks, crosses, arrows for bounds.

    A bound on several frameworks or networks is one mark, in no one's colour. `whole` and `by`: see
    `draw_measured`.
    """
    looks = looks_by(whole, by)
    for _, rows in table.groupby(["statement", "world_size", "value"], sort=False):
        for row in rows.to_dict("records") if rows["bound"].iloc[0] == "value" else [None]:
            row = row or rows.iloc[0].to_dict()
            named = rows[by].nunique(dropna=False) == 1 or row["bound"] == "value"
            look = looks[row[by]] if named and not pd.isna(row[by]) else _UNNAMED_LOOK
            alpha = 1.0 if pd.isna(row["contradiction"]) else _PALE
            _mark(ax, row, {**look, "alpha": alpha, "zorder": 3})


def _mark(ax: Axes, row: dict[str, Any], look: dict[str, Any]) -> None:
    x, y = float(row["world_size"]), float(row["value"])
    about: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 1.2, "markersize": 6}
    if row["bound"] == "value":
        about |= {"marker": "x"} if row["source"] == "derived" else {}
        ax.plot(x, y, **look | about)
        return
    ends = [float(row["world_size_min"]), x] if row["world_size_min"] < x else [x]
    ax.plot(ends, [y] * len(ends), **look | {"marker": "_", "markersize": 7, "linewidth": 1.0})
    lower = row["bound"] == "lower"
    for end in ends:
        ax.annotate(
            "",
            (end, y),
            xytext=(0, 11 if lower else -11),
            textcoords="offset points",
            arrowprops={"arrowstyle": "<|-", "color": look["color"], "alpha": look["alpha"],
                        "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip


def ideals(table: pd.DataFrame) -> pd.DataFrame:
    """Return where proportional scaling would end: rows of `table` at their base, plus `end`.

    Only configurations with a second world size, unless the panel has none.
    """
    table = table[table["value"].notna() & (table["bound"] == "value")]
    keys = ["source", *CONFIGURATION]
    sizes = table.groupby(keys, dropna=False)["world_size"].transform("nunique")
    base = table[table["world_size"] == table["base_world_size"]]
    scaling = base[sizes[base.index] > 1]
    base = scaling if len(scaling) else base
    most = table["world_size"].max()
    return base.assign(most=most, end=base["value"] * most / base["world_size"])


def draw_ideals(ax: Axes, table: pd.DataFrame) -> None:
    """Draw the lines of `ideals`."""
    x, y = (table[ends].to_numpy(float).T for ends in (["world_size", "most"], ["value", "end"]))
    ax.plot(x, y, **style.IDEAL)


def legend(points: pd.DataFrame, ideal: str, by: str) -> list[Line2D]:
    """Return the handles of a points table: only what occurs in it. `by`: see `draw_measured`."""
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    theirs = points[points["source"] != "measured"]
    looks = looks_by(points, by)
    call = {"framework_strategy": style.strategy_name, "model": style.model_name}[by]
    end = ", measured" if len(theirs) else ""
    made = handles({call(name): look for name, look in looks.items() if name in set(ours[by])}, end)
    loaders, formats = set(points["loader"]), style.formats_differ(ours)
    for loader in style.loaders(ours["loader"]):
        for read in style.formats(ours.loc[ours["loader"] == loader, "data_format"]):
            look = style.loader_look(loader, read, loaders) | {"color": "#555555", "marker": "o"}
            name = style.loader_name(loader, read, formats) + ("" if formats else " loader")
            made.append(Line2D([], [], label=name, **look))
    grey: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 1.2}
    stated = {call(name): look for name, look in looks.items() if name in set(theirs[by])}
    if theirs[by].isna().any():
        stated[_UNNAMED[by]] = _UNNAMED_LOOK
    made += handles(stated, ", paper", **grey)
    if (points["source"] == "derived").any():
        derived = {"derived from the paper": {"marker": "x", "color": style.UNNAMED_COLOUR}}
        made += handles(derived, markeredgewidth=1.3)
    return [*made, Line2D([], [], **style.IDEAL, label=ideal)]
