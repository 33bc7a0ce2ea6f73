"""How far each training comes below what its loader and its network allow: a bullet graph."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddl_core.analysis.figures.by_arm import interval
from ddl_core.analysis.figures.over_workers import drawn_panels
from ddl_core.analysis.plot import captions, labels, style
from ddl_core.analysis.plot.canvas import frame, styled
from ddl_core.analysis.plot.rows import arm_name, in_order, label_inches, most_rows, row_axes
from ddl_core.analysis.plot.scales import three_digits

_ROW_INCHES = 0.42
_LABEL_INCHES = 1.5
_NUMBER_INCHES = 1.9
_BEYOND = 1.15  # the axis ends so much right of the last value or bound


@styled
def loader_bound(points: pd.DataFrame) -> Figure:
    """Return each arm's throughput inside its bound, a row per arm, what limits it beside it."""
    panels = drawn_panels(points) or ["nothing measured here yet"]
    tables = [in_order(points[points["panel"] == name]) for name in panels]
    most = most_rows([len(table) for table in tables])
    tables = [table[:most] for table in tables]
    formats = style.formats_differ(points)
    names = [[arm_name(row, formats) for row in table.to_dict("records")] for table in tables]
    texts = ["\n".join(_texts(row)) for table in tables for row in table.to_dict("records")]
    figure, axes = frame(
        "Is the loader the bottleneck, and by how much?",
        panels,
        [max(len(table), 2) * _ROW_INCHES for table in tables],
        _legend(points),
        _caption(points, tables),
        left=label_inches([name for panel in names for name in panel], _LABEL_INCHES),
        right=[label_inches(texts, _NUMBER_INCHES, labels.POINTS)] * len(panels),
    )
    for ax, table, labelled in zip(axes, tables, names, strict=True):
        end = _end(table)
        for position, row in enumerate(table.to_dict("records")):
            _row(ax, position, row, end)
        ax.set_xlim(0, end)
        row_axes(ax, labelled)
    return figure


def _end(table: pd.DataFrame) -> float:
    """Return where the axis ends: a loader that is many times faster would squeeze all others."""
    values = table[["value", "high", "bound"]].max(axis=1)
    half = table[["loading", "training"]].min(axis=1)  # where the other one was not measured
    near = half.where(table["bound"].isna() & (half < 2 * values))
    most = pd.concat([values, near]).max()
    return float(most) * _BEYOND if most > 0 else 1.0


def _row(ax: Axes, position: int, row: dict[str, Any], end: float) -> None:
    for column, hue in (("bound", style.BOUND_COLOUR), ("in_turns", style.IN_TURNS_COLOUR)):
        if row[column] > 0:
            ax.barh(position, row[column], height=0.66, color=hue, zorder=1)
    for half in style.HALF_NAMES:
        _tick(ax, position, row, half, end)
    if row["n"]:
        hue = style.colour(row["strategy"])
        bars = np.nan_to_num([[row["value"] - row["low"]], [row["high"] - row["value"]]])
        ax.errorbar(row["value"], position, xerr=bars, fmt=style.marker(row["strategy"]), color=hue,
                    markersize=5, capsize=2.5, elinewidth=1.2, zorder=5)  # fmt: skip
    labels.write(ax, "\n".join(_texts(row)), (1, position), (8, 0), coords=ax.get_yaxis_transform())


def _tick(ax: Axes, position: int, row: dict[str, Any], half: str, end: float) -> None:
    """Draw one half's own throughput; an arrow where it is right of the axis."""
    look: dict[str, Any] = {"color": style.HALF_COLOUR, "linestyle": style.HALF_LINES[half]}
    if row[half] > end:
        place = position + (0.2 if half == "training" else -0.2)
        arrow = {"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0, **look}
        ax.annotate("", (end, place), xytext=(-16, 0), textcoords="offset points", arrowprops=arrow)
    elif row[half] > 0:
        ax.plot([row[half]] * 2, [position - 0.33, position + 0.33], linewidth=1.8, zorder=3,
                **look)  # fmt: skip
        ends = [row[f"{half}_low"], row[f"{half}_high"]]
        ax.plot(ends, [position + 0.33] * 2, color=style.HALF_COLOUR, linewidth=0.9, zorder=3)


def _texts(row: dict[str, Any]) -> list[str]:
    """Return three lines: what was measured, both halves, what limits."""
    own = f"{three_digits(row['value'])}{interval(row)}  " if row["n"] else ""
    lost = f", {row['failed']} lost" if row["failed"] else ""
    names = {"loading": "loader alone", "training": "synthetic"}
    known = [f"{name} {three_digits(row[half])}" for half, name in names.items() if row[half] > 0]
    limit = row["limit"]
    if row["ratio"] > 0:
        limit = f"{row['ratio']:.2f} of the bound; limit: {limit}"
    return [f"{own}n = {row['n']}{lost}", *([", ".join(known)] if known else []), limit]


def _legend(points: pd.DataFrame) -> list[Artist]:
    made: list[Artist] = [
        Line2D([], [], linestyle="none", marker=style.marker(name), markersize=5,
               color=style.colour(name), label=style.STRATEGY_NAMES[name])
        for name in style.STRATEGY_NAMES
        if (points["strategy"] == name).any()
    ]  # fmt: skip
    made += [
        Line2D([], [], color=style.HALF_COLOUR, linewidth=1.8, linestyle=style.HALF_LINES[half],
               label=name)
        for half, name in style.HALF_NAMES.items()
    ]  # fmt: skip
    if points["bound"].isna().all():
        return made
    return [
        *made,
        Patch(color=style.BOUND_COLOUR, label="up to the bound"),
        Patch(color=style.IN_TURNS_COLOUR, label="both in turns"),
    ]


def _caption(points: pd.DataFrame, drawn: list[pd.DataFrame]) -> list[str]:
    sentences = [
        "Bound: the smaller of loader alone (L) and training on synthetic data (S). Darker: what "
        "is left if both take turns on the same cores, 1 / (1/L + 1/S).",
    ]
    if points["on_cpu"].any():
        sentences.append(
            "On a CPU, loader and training share the cores: what is measured lies below both."
        )
    sentences.append("Within 5 % of the bound, the smaller one is named as the limit.")
    sentences += captions.runs(points)
    halves = [f"{name} ({captions.counted('n', n[n > 0])})"
              for name, n in (("L", points["loading_n"]), ("S", points["training_n"]))
              if (n > 0).any()]  # fmt: skip
    sentences += [f"Medians as well: {', '.join(halves)}."] if halves else []
    if any((table[list(style.HALF_NAMES)] > _end(table)).any(axis=None) for table in drawn):
        sentences.append("Arrows: right of the axis, see the number.")
    rest = len(points) - sum(map(len, drawn))
    return [*sentences, *([f"Rows not drawn, see the CSV: {rest}."] if rest else [])]
