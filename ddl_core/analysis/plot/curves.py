"""Inside a panel: what is measured, with its intervals and the ideal, and what the paper states.

The stated are open marks, crosses, arrows, and their numbers.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ddl_core.analysis.arms import ARM
from ddl_core.analysis.plot import labels, marks, style
from ddl_core.analysis.plot.scales import compact, octaves_per_point, size_points

_ARMS_APART_POINTS = 7.0
_MOST_OCTAVES = 0.6
_MOST_NAMES = 6

GAP_POINTS = 17.0  # from a column to its texts: past marks that stand side by side
_STATEMENTS_APART_POINTS = 8.0
_ARROW_POINTS = 13.0


def draw_measured(ax: Axes, table: pd.DataFrame, whole: pd.DataFrame) -> None:
    """Draw each arm in the looks that it has in the `whole` figure: a line with its intervals.

    Arms are moved a little sideways, so that bars at one number of workers stay apart. Where a
    panel has several models, each has its shade of the strategy's colour and its name at the end.
    """
    table = table[table["n"] > 0]
    looks, loaders = style.strategy_looks(whole["strategy"]), set(whole["loader"])
    arms = table.groupby(ARM, sort=True)
    several, middle = table["model"].nunique() > 1, (arms.ngroups - 1) / 2
    step = min(_ARMS_APART_POINTS * octaves_per_point(ax), _MOST_OCTAVES / max(arms.ngroups, 1))
    shades = {
        f"{strategy} {model}": look
        | ({"color": style.model_hue(look["color"], model)} if several else {})
        for strategy, look in looks.items()
        for model in table["model"].unique()
    }
    table = table.assign(
        x=table["world_size"].astype(float) * 2 ** (step * (arms.ngroup() - middle)),
        name=table["strategy"] + " " + table["model"],
    )
    for (loader, read), part in table.groupby(["loader", "data_format"]):
        look = style.loader_look(str(loader), str(read), loaders)
        marks.lines(ax, part, "x", "name", shades, **look)
    if several and arms.ngroups <= _MOST_NAMES:
        ends = table.drop_duplicates(ARM, keep="last").sort_values(ARM)
        labels.beside(
            ax,
            [style.model_name(model) for model in ends["model"]],
            list(zip(ends["world_size"].astype(float), ends["value"], strict=True)),
            middle * _ARMS_APART_POINTS + 8,
            [shades[name]["color"] for name in ends["name"]],
        )


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
    x, y = (lines[ends].to_numpy(float).T for ends in (["world_size", "most"], ["value", "end"]))
    ax.plot(x, y, **style.IDEAL)


def legend(points: pd.DataFrame, ideal: str) -> list[Line2D]:
    """Return the handles of a points table: only what occurs in it."""
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    stated = points[points["source"] == "stated"]["strategy"]
    looks = style.strategy_looks(points["strategy"])
    made = _dots({name: looks[name] for name in looks if name in set(ours["strategy"])}, "measured")
    made += _loaders(ours, set(points["loader"]))
    theirs = {name: looks[name] for name in looks if name in set(stated)}
    made += _dots(theirs, "paper", markerfacecolor="white")
    grey: dict[str, Any] = {"color": style.UNNAMED_COLOUR, "markeredgewidth": 1.3}
    if stated.isna().any():
        unnamed = {style.UNNAMED: {"marker": style.UNNAMED_MARKER, "markerfacecolor": "white"}}
        made += marks.handles(unnamed, ", paper", **grey)
    if (points["source"] == "derived").any():
        made += marks.handles({"derived from the paper": {"marker": "x"}}, **grey)
    return [*made, Line2D([], [], **style.IDEAL, label=ideal)]


def _loaders(ours: pd.DataFrame, loaders: set[str]) -> list[Line2D]:
    """Return the handles of every loader, once for each format that it reads."""
    formats = style.formats_differ(ours)
    end = "" if formats else " loader"
    there = set(ours[["loader", "data_format"]].itertuples(index=False, name=None))
    return [
        Line2D([], [], label=style.loader_name(loader, read, formats) + end, color="#555555",
               marker="o", **style.loader_look(loader, read, loaders))
        for loader in style.loaders(ours["loader"])
        for read in style.formats(ours["data_format"])
        if (loader, read) in there
    ]  # fmt: skip


def _dots(looks: style.Looks, whose: str, **more: Any) -> list[Line2D]:
    return marks.handles(style.strategies_named(looks), f", {whose}", markeredgewidth=1.3, **more)


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
        parts += [style.model_name(model)] if models and model else []
        told = several and row["loader"] not in unsaid
        parts += [style.loader_name(row["loader"])] if told else []
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
        hue = style.colour(strategy)
        look: dict[str, Any] = {"marker": "_", "markersize": 8}
        if row["bound"] != "value":
            _arrow(ax, x, row, hue)
        elif row["source"] == "derived":
            look = {"marker": "x"}
        else:
            look = {"marker": style.marker(strategy), "markerfacecolor": "white"}
        ax.plot(x, row["value"], color=hue, markeredgewidth=1.3, zorder=4, **look)


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
    return style.widest(texts, labels.POINTS) > room
