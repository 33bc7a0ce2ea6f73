"""What is measured, inside a panel: arms with their intervals, the ideal, and the legend."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ddl_core.analysis import labels, style
from ddl_core.analysis.scales import octaves_per_point

_SIDE_BY_SIDE_POINTS = 7.0
_MOST_OCTAVES = 0.6
_MOST_NAMES = 6


def draw(ax: Axes, table: pd.DataFrame) -> None:
    """Draw each arm: filled markers, solid interval bars, a line in the loader's style.

    Arms are moved a little sideways, so that bars at one number of workers stay apart. Where a
    panel has several models, each has its shade of the strategy's colour and its name at the end.
    """
    arms = list(table[table["n"] > 0].groupby(["strategy", "loader", "model"], sort=True))
    several = table["model"].nunique() > 1
    middle = (len(arms) - 1) / 2
    step = min(_SIDE_BY_SIDE_POINTS * octaves_per_point(ax), _MOST_OCTAVES / max(len(arms), 1))
    names, ends, hues = [], [], []
    for number, ((strategy, loader, model), arm) in enumerate(arms):
        hue = style.tint(style.colour(strategy), style.MODEL_SHADES[model] if several else 1.0)
        _draw_arm(ax, arm, 2 ** (step * (number - middle)), hue, strategy, loader)
        names.append(style.MODEL_NAMES[model])
        ends.append((float(arm["world_size"].iloc[-1]), float(arm["value"].iloc[-1])))
        hues.append(hue)
    if several and len(arms) <= _MOST_NAMES:
        labels.beside(ax, names, ends, middle * _SIDE_BY_SIDE_POINTS + 8, hues)


def _draw_arm(
    ax: Axes, arm: pd.DataFrame, shift: float, hue: str, strategy: str, loader: str
) -> None:
    x, y = arm["world_size"].to_numpy(dtype=float) * shift, arm["value"].to_numpy()
    bars = np.nan_to_num([y - arm["low"].to_numpy(), arm["high"].to_numpy() - y])
    look = {"color": hue, "fmt": style.marker(strategy), **_filled(loader)}
    ax.plot(x, y, color=hue, linestyle=style.LOADER_LINES[loader], zorder=3)
    ax.errorbar(x, y, yerr=bars, capsize=2.5, elinewidth=1.2, zorder=4, **look)


def _filled(loader: str) -> dict[str, Any]:
    return {"fillstyle": style.LOADER_FILLS[loader], "markerfacecoloralt": "white"}


def ideals(table: pd.DataFrame) -> pd.DataFrame:
    """Return where proportional scaling would end: rows of `table` at their base, plus `end`.

    Only arms with a second world size, unless the panel has none.
    """
    table = table[table["value"].notna() & (table["bound"] == "value")]
    keys = ["source", "strategy", "loader", "model"]
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
    made += [
        Line2D(
            [],
            [],
            color="#555555",
            linestyle=line,
            marker="o",
            label=f"{style.LOADER_NAMES[name]} loader",
            **_filled(name),
        )
        for name, line in style.LOADER_LINES.items()
        if (ours["loader"] == name).any()
    ]
    made += [
        _dot(name, f"{style.strategy_name(name)}, paper", "white")
        for name in [*named, None]
        if (stated.isna() if name is None else stated == name).any()
    ]
    if derived.any():
        look: dict[str, Any] = {"linestyle": "none", "marker": "x", "color": style.UNNAMED_COLOUR}
        made.append(Line2D([], [], label="derived from the paper", **look))
    return [*made, Line2D([], [], **style.IDEAL, label=ideal)]


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
