"""Inside a panel: what is measured, with its intervals and the ideal, and what the paper states.

The stated are open marks, crosses, arrows, and their numbers.
"""

from collections.abc import Iterable
from itertools import count, pairwise
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ddl_core.analysis.arms import ARM
from ddl_core.analysis.plot import labels, marks, style
from ddl_core.analysis.plot.scales import compact, octaves_per_point, points_from_corner

_ARMS_APART_POINTS = 7.0
_MOST_OCTAVES = 0.6
_STATED_POINTS = 6.0  # size of a mark
_HIDDEN_POINTS = 3.0  # closer open marks hide one another
_STATED_LARGER_POINTS = 3.5  # each one around another
_TEXT_POINTS = 16.0  # of a column, with a text between two marks
_ARROW_POINTS = 11.0


NO_FRAMEWORK = "\N{DAGGER}"
_UNNAMED = {"framework": style.UNNAMED, "model": style.UNNAMED_MODEL}
_UNNAMED_LOOK = {"color": style.UNNAMED_COLOUR, "marker": style.UNNAMED_MARKER}


def looks_by(points: pd.DataFrame, by: str) -> style.Looks:
    """Return how the frameworks or the models of a whole figure look: `by` is the column."""
    return {"framework": style.strategy_looks, "model": style.model_looks}[by](points[by])


def draw_measured(ax: Axes, table: pd.DataFrame, whole: pd.DataFrame, by: str) -> None:
    """Draw each arm in the looks that it has in the `whole` figure: a line with its intervals.

    `by` is what colour and marker tell, "framework" or "model". Arms are moved a little sideways,
    so that bars at one number of workers stay apart.
    """
    table = table[table["n"] > 0]
    looks, loaders = looks_by(whole, by), set(whole["loader"])
    arms = table.groupby(ARM, sort=True)
    middle = (arms.ngroups - 1) / 2
    step = min(_ARMS_APART_POINTS * octaves_per_point(ax), _MOST_OCTAVES / max(arms.ngroups, 1))
    table = table.assign(
        x=table["world_size"].astype(float) * 2 ** (step * (arms.ngroup() - middle)),
        name=table["framework"] + " " + table["model"],
    )
    named = table.drop_duplicates("name")
    lines = {name: looks[one] for name, one in zip(named["name"], named[by], strict=True)}
    for (loader, read), part in table.groupby(["loader", "data_format"]):
        look = style.loader_look(str(loader), str(read), loaders)
        marks.lines(ax, part, "x", "name", lines, **look)


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


def legend(points: pd.DataFrame, ideal: str, by: str) -> list[Line2D]:
    """Return the handles of a points table: only what occurs in it. `by`: see `draw_measured`."""
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    theirs = points[points["source"] != "measured"]
    theirs = theirs if by == "model" else theirs[theirs["source"] == "stated"]
    looks = looks_by(points, by)
    made = _dots(looks, by, ours[by], ", measured")
    made += _loaders(ours, set(points["loader"]))
    made += _dots(looks, by, theirs[by], ", paper", markerfacecolor="white")
    grey: dict[str, Any] = {"color": style.UNNAMED_COLOUR, "markeredgewidth": 1.3}
    if theirs[by].isna().any():
        unnamed = {_UNNAMED[by]: {"marker": style.UNNAMED_MARKER, "markerfacecolor": "white"}}
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


def _dots(looks: style.Looks, by: str, there: pd.Series, whose: str, **more: Any) -> list[Line2D]:
    call = {"framework": style.strategy_name, "model": style.model_name}[by]
    called = {call(name): look for name, look in looks.items() if name in set(there)}
    return marks.handles(called, whose, markeredgewidth=1.3, **more)


def stated_texts(table: pd.DataFrame, by: str) -> pd.Series:
    """Return the text of each statement of a panel: number, what it is about, contradictions.

    The model is named where a panel has several or `by` is "model", and then `NO_FRAMEWORK` marks
    what no mark tells; the loader is named where statements exclude one another.
    """
    loaders = set(table["loader"])
    models = by == "model" or table["model"].nunique() > 1
    several = len(loaders - {"dali"}) > 1 or {"native", "dali"} <= loaders
    unsaid = {"dali"} if "native" not in loaders else set()
    texts = []
    for row in table.to_dict("records"):
        unnamed = by == "model" and pd.isna(row["strategy"])
        parts = [_number(row) + (NO_FRAMEWORK if unnamed else "")]
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


def draw_stated(ax: Axes, table: pd.DataFrame, whole: pd.DataFrame, by: str) -> None:
    """Draw every statement of a panel once, at its own place, its text beside it.

    A bound on several frameworks or networks is one mark, in no one's colour.

    `whole` and `by`: see `draw_measured`.
    """
    looks = looks_by(whole, by)
    found = [_UNNAMED_LOOK if pd.isna(name) else looks[name] for name in table[by]]
    hues = pd.Series([look["color"] for look in found], table.index, dtype="string")
    places = [table["statement"], table["world_size"]]
    shared = (table["bound"] != "value") & (hues.groupby(places).transform("nunique") > 1)
    found = [_UNNAMED_LOOK if of else look for of, look in zip(shared, found, strict=True)]
    table = table.assign(look=pd.Series(found, table.index, dtype=object))
    table["text"] = stated_texts(table, by)
    spans = table["world_size_min"] < table["world_size"]
    for _, rows in table[spans].groupby("statement", sort=False):
        _span(ax, rows)
    most = table["world_size"].max()
    for workers, column in table[~spans].groupby("world_size"):
        column = _nested(ax, column.sort_values(["value", "statement", by]))
        for row in column.to_dict("records"):
            _mark(ax, row)
        # A statement about several has one text.
        notes = column.drop_duplicates("statement", keep="last")
        _write(ax, notes, last=workers == most)


def _span(ax: Axes, rows: pd.DataFrame) -> None:
    """Draw a bound that holds over a range of workers."""
    row, hues = rows.iloc[0], {look["color"] for look in rows["look"]}
    hue = hues.pop() if len(hues) == 1 else style.UNNAMED_COLOUR
    x = [float(row["world_size_min"]), float(row["world_size"])]
    ax.plot(x, [row["value"]] * 2, color=hue, linewidth=1.0, zorder=2)
    for end in x:
        _arrow(ax, end, row, hue)
    lower = row["bound"] == "lower"
    place = (x[0], float(row["value"]))
    labels.write(ax, row["text"], place, (4, -3 if lower else 3), va="top" if lower else "bottom")


def _nested(ax: Axes, column: pd.DataFrame) -> pd.DataFrame:
    """Return the marks at one number of workers, lowest first, with a ``size`` that hides none.

    No mark is moved: an open one that would hide another is drawn around it.
    """
    is_open = (column["bound"] == "value") & (column["source"] != "derived")
    rings = [place for place, ring in enumerate(is_open) if ring]
    workers = float(column["world_size"].iloc[0])
    heights = [points_from_corner(ax, (workers, value))[1] for value in column["value"]]
    places: dict[int, int] = {}
    for mark in rings:
        over = {
            place
            for other, place in places.items()
            if abs(heights[mark] - heights[other]) < _HIDDEN_POINTS
        }
        places[mark] = next(place for place in count() if place not in over)
    larger = [_STATED_LARGER_POINTS * places.get(mark, 0) for mark in range(len(heights))]
    return column.assign(x=workers, size=[_STATED_POINTS + more for more in larger])


def _mark(ax: Axes, row: Any) -> None:
    hue = row["look"]["color"]
    look: dict[str, Any] = {"marker": "_", "markersize": row["size"] + 2}
    if row["bound"] != "value":
        _arrow(ax, row["x"], row, hue)
    elif row["source"] == "derived":
        look = {"marker": "x", "markersize": row["size"]}
    else:
        look = {"marker": row["look"]["marker"], "markersize": row["size"]}
    ax.plot(row["x"], row["value"], color=hue, markerfacecolor="none", markeredgewidth=1.3,
            zorder=4, **look)  # fmt: skip


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


def _write(ax: Axes, notes: pd.DataFrame, last: bool) -> None:
    """Write the texts of one column: right of the last, over the others where there is room."""
    places = list(zip(notes["x"], notes["value"], strict=True))
    heights = sorted(points_from_corner(ax, place)[1] for place in places)
    crowded = any(high - low < _TEXT_POINTS for low, high in pairwise(heights))
    if last or crowded or _reach_out(ax, notes["text"], places[-1]):
        hues = [look["color"] for look in notes["look"]]
        labels.beside(ax, list(notes["text"]), places, hues)
        return
    for row, place in zip(notes.to_dict("records"), places, strict=True):
        # On the side that no arrow takes, and to the left, away from the next column.
        lower = row["bound"] == "lower"
        offset = (8, -5 if lower else 5)
        labels.write(ax, row["text"], place, offset, "right", "top" if lower else "bottom")


def _reach_out(ax: Axes, texts: Iterable[str], place: tuple[float, float]) -> bool:
    """Say whether texts that end at `place` would begin left of the axes."""
    return style.widest(texts, labels.POINTS) > points_from_corner(ax, place)[0]
