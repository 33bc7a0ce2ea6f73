"""What is measured, inside a panel: arms with their intervals, the ideal, and the legend."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ddl_core.analysis.plot import labels, style
from ddl_core.analysis.plot.scales import octaves_per_point
from ddl_core.analysis.settings import ARM

_SIDE_BY_SIDE_POINTS = 7.0
_MOST_OCTAVES = 0.6
_MOST_NAMES = 6


def draw(ax: Axes, table: pd.DataFrame) -> None:
    """Draw each arm: filled markers, solid interval bars, a line in the loader's style.

    What was read from TFRecord is larger and thicker. Arms are moved a little sideways, so that
    bars at one number of workers stay apart. Where a panel has several models, each has its shade
    of the strategy's colour and its name at the end.
    """
    arms = list(table[table["n"] > 0].groupby(ARM, sort=True))
    several = table["model"].nunique() > 1
    middle = (len(arms) - 1) / 2
    step = min(_SIDE_BY_SIDE_POINTS * octaves_per_point(ax), _MOST_OCTAVES / max(len(arms), 1))
    names, ends, hues = [], [], []
    for number, ((strategy, _, _, model), arm) in enumerate(arms):
        hue = style.tint(style.colour(strategy), style.MODEL_SHADES[model] if several else 1.0)
        _draw_arm(ax, arm, 2 ** (step * (number - middle)), hue)
        names.append(style.MODEL_NAMES[model])
        ends.append((float(arm["world_size"].iloc[-1]), float(arm["value"].iloc[-1])))
        hues.append(hue)
    if several and len(arms) <= _MOST_NAMES:
        labels.beside(ax, names, ends, middle * _SIDE_BY_SIDE_POINTS + 8, hues)


def _draw_arm(ax: Axes, arm: pd.DataFrame, shift: float, hue: str) -> None:
    first = arm.iloc[0]
    x, y = arm["world_size"].to_numpy(dtype=float) * shift, arm["value"].to_numpy()
    bars = np.nan_to_num([y - arm["low"].to_numpy(), arm["high"].to_numpy() - y])
    line, marker = _look(first["loader"], first["data_format"])
    ax.plot(x, y, color=hue, zorder=3, **line)
    marker |= {"color": hue, "fmt": style.marker(first["strategy"])}
    ax.errorbar(x, y, yerr=bars, capsize=2.5, elinewidth=1.2, zorder=4, **marker)


def _look(loader: str, data_format: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how the line and the markers of a loader look that reads this format."""
    line = {
        "linestyle": style.LOADER_LINES[loader],
        "linewidth": style.FORMAT_LINE_WIDTHS[data_format],
    }
    marker = {
        "fillstyle": style.LOADER_FILLS[loader],
        "markerfacecoloralt": "white",
        "markersize": style.FORMAT_MARKER_SIZES[data_format],
    }
    return line, marker


def ideals(table: pd.DataFrame) -> pd.DataFrame:
    """Return where proportional scaling would end: rows of `table` at their base, plus `end`.

    Only arms with a second world size, unless the panel has none.
    """
    table = table[table["value"].notna() & (table["bound"] == "value")]
    keys = ["source", *ARM]
    sizes = table.groupby(keys, dropna=False)["world_size"].transform("nunique")
    base = table[table["world_size"] == table["base_world_size"]]
    scaling = base[sizes[base.index] > 1]
    base = scaling if len(scaling) else base
    most = table["world_size"].max()
    return base.assign(most=most, end=base["value"] * most / base["world_size"])


def draw_ideals(ax: Axes, lines: pd.DataFrame) -> None:
    """Draw the lines of `ideals`."""
    for row in lines.to_dict("records"):
        ax.plot([row["world_size"], row["most"]], [row["value"], row["end"]], **style.IDEAL)


def legend(points: pd.DataFrame, ideal: str) -> list[Artist]:
    """Return the handles of a points table: only what occurs in it."""
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    stated = points[points["source"] == "stated"]["strategy"]
    derived = points["source"] == "derived"
    named = list(style.STRATEGY_NAMES)
    made: list[Artist] = [
        _dot(name, f"{style.STRATEGY_NAMES[name]}, measured")
        for name in named
        if (ours["strategy"] == name).any()
    ]
    made += _loaders(ours)
    made += [
        _dot(name, f"{style.strategy_name(name)}, paper", "white")
        for name in [*named, None]
        if (stated.isna() if name is None else stated == name).any()
    ]
    if derived.any():
        look: dict[str, Any] = {"linestyle": "none", "marker": "x", "color": style.UNNAMED_COLOUR}
        made.append(Line2D([], [], label="derived from the paper", **look))
    return [*made, Line2D([], [], **style.IDEAL, label=ideal)]


def _loaders(ours: pd.DataFrame) -> list[Artist]:
    """Return the handles of every loader, once for each format that it reads."""
    formats = style.formats_differ(ours)
    handles: list[Artist] = []
    for loader, read in itertools.product(style.LOADER_NAMES, style.FORMAT_NAMES):
        if ((ours["loader"] == loader) & (ours["data_format"] == read)).any():
            line, marker = _look(loader, read)
            name = style.loader_name(loader, read, formats)
            label = name if formats else f"{name} loader"
            look = {"color": "#555555", "marker": "o", **line, **marker}
            handles.append(Line2D([], [], label=label, **look))
    return handles


def _dot(strategy: str | None, label: str, fill: str | None = None) -> Line2D:
    hue = style.colour(strategy)
    return Line2D(
        [],
        [],
        linestyle="none",
        marker=style.marker(strategy),
        color=hue,
        markerfacecolor=fill or hue,
        markeredgewidth=1.3,
        label=label,
    )
