"""The paper's statements inside a panel: open marks, crosses, arrows, and their numbers."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from ddl_core.analysis.plot import labels, style
from ddl_core.analysis.plot.scales import compact, octaves_per_point, size_points

GAP_POINTS = 17.0  # from a column to its texts: past marks that stand side by side
_SIDE_BY_SIDE_POINTS = 8.0
_ARROW_POINTS = 13.0


def describe(table: pd.DataFrame) -> pd.Series:
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


def draw(ax: Axes, table: pd.DataFrame) -> None:
    """Draw every statement of a panel once, its strategies side by side, its text beside it."""
    texts = describe(table)
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
    step = _SIDE_BY_SIDE_POINTS * octaves_per_point(ax)
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
