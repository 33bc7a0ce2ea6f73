"""Inside a panel: what is measured, with its intervals and the ideal, and what the paper states.

The stated are open marks, crosses, arrows, and their numbers.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ddl_core.analysis.arms import ARM
from ddl_core.analysis.plot import labels, style
from ddl_core.analysis.plot.scales import compact, octaves_per_point, size_points

_ARMS_APART_POINTS = 7.0
_MOST_OCTAVES = 0.6
_MOST_NAMES = 6

GAP_POINTS = 17.0  # from a column to its texts: past marks that stand side by side
_STATEMENTS_APART_POINTS = 8.0
_ARROW_POINTS = 13.0


def draw_measured(ax: Axes, table: pd.DataFrame) -> None:
    """Draw each arm: filled markers, solid interval bars, a line in the loader's style.

    What was read from TFRecord is larger and thicker. Arms are moved a little sideways, so that
    bars at one number of workers stay apart. Where a panel has several models, each has its shade
    of the strategy's colour and its name at the end.
    """
    arms = list(table[table["n"] > 0].groupby(ARM, sort=True))
    several = table["model"].nunique() > 1
    middle = (len(arms) - 1) / 2
    step = min(_ARMS_APART_POINTS * octaves_per_point(ax), _MOST_OCTAVES / max(len(arms), 1))
    names, ends, hues = [], [], []
    for number, ((strategy, _, _, model), arm) in enumerate(arms):
        hue = style.tint(style.colour(strategy), style.MODEL_SHADES[model] if several else 1.0)
        _draw_arm(ax, arm, 2 ** (step * (number - middle)), hue)
        names.append(style.MODEL_NAMES[model])
        ends.append((float(arm["world_size"].iloc[-1]), float(arm["value"].iloc[-1])))
        hues.append(hue)
    if several and len(arms) <= _MOST_NAMES:
        labels.beside(ax, names, ends, middle * _ARMS_APART_POINTS + 8, hues)


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


def stated_texts(table: pd.DataFrame) -> pd.Series:
    """Return the text of each statement of a panel: number, what it is about, contradictions.

    The model is named where a panel has several, the loader where statements exclude one another.
    """
    loaders = set(table["loader"])
    models = table["model"].nunique() > 1
    several = len(loaders - {"dali"}) > 1 or {"native", "dali"} <= loaders
    unsaid = {"dali"} if "native" not in loaders else set()
    texts = []
    for row in table.to_dict("records"):
        parts = [_number(row)]
        model = name_or_none(row["model"])
        parts += [style.MODEL_NAMES[model]] if models and model else []
        parts += (
            [style.LOADER_NAMES[row["loader"]]] if several and row["loader"] not in unsaid else []
        )
        ids = name_or_none(row["contradiction"])
        texts.append(" ".join([*parts, f"[{ids.replace(';', ' ')}]"] if ids else parts))
    return pd.Series(texts, index=table.index, dtype="string")


def _number(row: dict[str, Any]) -> str:
    if row["source"] == "stated":
        return str(row["printed"])
    sign = {"value": "≈", "lower": ">", "upper": "<"}[row["bound"]]
    return sign + (compact(row["value"]) if row["value"] > 10 else f"{row['value']:.2f}")


def name_or_none(value: object) -> str | None:
    """Turn a table's missing value into None."""
    return None if pd.isna(value) else str(value)


def draw_stated(ax: Axes, table: pd.DataFrame) -> None:
    """Draw every statement of a panel once, its strategies side by side, its text beside it."""
    texts = stated_texts(table)
    spans = table["world_size_min"] < table["world_size"]
    for _, rows in table[spans].groupby("statement", sort=False):
        _span(ax, rows.iloc[0], texts[rows.index[0]])
    most = table["world_size"].max()
    for workers, column in table[~spans].groupby("world_size"):
        notes = []
        for _, rows in column.groupby("statement", sort=False):
            _marks(ax, rows)
            notes.append((rows.iloc[0], texts[rows.index[0]]))
        _write(ax, notes, last=workers == most)


def _span(ax: Axes, row: pd.Series, text: str) -> None:
    """Draw a bound that holds over a range of workers."""
    x = [float(row["world_size_min"]), float(row["world_size"])]
    ax.plot(x, [row["value"]] * 2, color=style.UNNAMED_COLOUR, linewidth=1.0, zorder=2)
    for end in x:
        _arrow(ax, end, row, style.UNNAMED_COLOUR)
    lower = row["bound"] == "lower"
    place = (x[0], float(row["value"]))
    labels.write(ax, text, place, (4, -3 if lower else 3), va="top" if lower else "bottom")


def _marks(ax: Axes, rows: pd.DataFrame) -> None:
    step = _STATEMENTS_APART_POINTS * octaves_per_point(ax)
    for number, row in enumerate(rows.sort_values("strategy").to_dict("records")):
        strategy = name_or_none(row["strategy"])
        x = float(row["world_size"]) * 2 ** (step * (number - (len(rows) - 1) / 2))
        look: dict[str, Any] = {
            "color": style.colour(strategy),
            "linestyle": "none",
            "markeredgewidth": 1.3,
        }
        if row["bound"] != "value":
            ax.plot(x, row["value"], marker="_", markersize=8, zorder=3, **look)
            _arrow(ax, x, row, style.colour(strategy))
        elif row["source"] == "derived":
            ax.plot(x, row["value"], marker="x", zorder=4, **look)
        else:
            ax.plot(
                x,
                row["value"],
                marker=style.marker(strategy),
                markerfacecolor="white",
                zorder=4,
                **look,
            )


def _arrow(ax: Axes, x: float, row: Any, hue: str) -> None:
    """Point from a bound to the side where the value may be."""
    look = {"arrowstyle": "<|-", "color": hue, "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0}
    ax.annotate(
        "",
        (x, row["value"]),
        xytext=(0, _ARROW_POINTS if row["bound"] == "lower" else -_ARROW_POINTS),
        textcoords="offset points",
        arrowprops=look,
    )


def _write(ax: Axes, notes: Sequence[tuple[pd.Series, str]], last: bool) -> None:
    """Write the texts of one column: right of the last, over the others where there is room."""
    places = [(float(row["world_size"]), float(row["value"])) for row, _ in notes]
    texts = [text for _, text in notes]
    if last or _reach_out(ax, texts, places[0]):
        labels.beside(ax, texts, places, GAP_POINTS)
        return
    for (row, text), place in zip(notes, places, strict=True):
        # On the side that no arrow takes, and to the left, away from the next column.
        lower = row["bound"] == "lower"
        labels.write(
            ax, text, place, (8, -5 if lower else 5), "right", "top" if lower else "bottom"
        )


def _reach_out(ax: Axes, texts: Sequence[str], place: tuple[float, float]) -> bool:
    """Say whether texts that end at `place` would begin left of the axes."""
    room = (ax.transScale + ax.transLimits).transform(place)[0] * size_points(ax)[0]
    return max(style.text_points(text, labels.POINTS) for text in texts) > room
