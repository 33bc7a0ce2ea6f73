"""Throughput of every arm: a row each, every repeat a dot."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddl_core.analysis.arms import KEYS, made_runs
from ddl_core.analysis.figures.over_workers import _stack, _with_model
from ddl_core.analysis.plot import captions, labels, style
from ddl_core.analysis.plot.canvas import frame, styled
from ddl_core.analysis.plot.rows import interval, label_inches, row_axes, workers_text
from ddl_core.analysis.plot.scales import three_digits

REPEATS = {
    "panel": "string",
    "study": "string",
    "strategy": "string",
    "loader": "string",
    "data_format": "string",
    "model": "string",
    "local_batch_size": "Int64",
    "world_size": "Int64",
    "repeat": "Int64",
    "run_id": "string",
    "lost": "boolean",
    "value": "float64",
    "n": "Int64",
    "failed": "Int64",
    "median": "float64",
    "low": "float64",
    "high": "float64",
    "hardware": "string",
    "on_cpu": "boolean",
    "commit": "string",
}

MOST_PANELS = 6
MOST_ROWS = 48  # in all panels together: about a page
_ROW_INCHES = 0.21
_LABEL_INCHES = 2.15
_NUMBER_INCHES = 1.7

_KEYS = ["strategy", "loader", "data_format", "world_size"]


def points(runs: pd.DataFrame, arms: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run that was made, with the median and interval of its arm beside it."""
    summary = arms.rename(columns={"value": "median"})
    summary = summary[[*KEYS, "n", "failed", "median", "low", "high"]]
    table = made_runs(runs).merge(summary, on=KEYS)
    table["panel"] = _with_model(table)
    order = ["panel", "strategy", "loader", "data_format", "world_size", "repeat", "run_id"]
    return _stack([table], REPEATS).sort_values(order, ignore_index=True)


@styled
def draw(repeats: pd.DataFrame) -> Figure:
    """Return every run's throughput, a row for each strategy, loader, format and world size."""
    panels = list(repeats["panel"].unique())[:MOST_PANELS] or ["nothing measured here yet"]
    tables = [repeats[repeats["panel"] == name] for name in panels]
    each = MOST_ROWS // len(panels)
    rows = [_in_order(table)[:each] for table in tables]
    formats = style.formats_differ(repeats)
    names = [[_name(*key, formats) for key, _ in arms] for arms in rows]
    figure, axes = frame(
        "Which strategy and loader trains fastest, and how sure is that?",
        panels,
        [max(len(arms), 2) * _ROW_INCHES for arms in rows],
        _legend(repeats),
        [
            *captions.runs(repeats.assign(failed=repeats["lost"])),
            *_left_out(repeats, sum(len(arms) for arms in rows)),
        ],
        left=label_inches([name for panel in names for name in panel], _LABEL_INCHES),
        right=[_NUMBER_INCHES] * len(panels),
    )
    for ax, arms, labelled in zip(axes, rows, names, strict=True):
        for position, (_, arm) in enumerate(arms):
            _row(ax, position, arm)
        ax.set_xlim(left=0, right=None if arms else 1)
        row_axes(ax, labelled)
    return figure


def _in_order(table: pd.DataFrame) -> list[tuple[tuple[str, str, str, int], pd.DataFrame]]:
    """Return the arms as people list them: single process first, DDP, then the others."""
    orders = [list(style.STRATEGY_NAMES), list(style.LOADER_NAMES), list(style.FORMAT_NAMES)]
    return sorted(
        table.groupby(_KEYS),
        key=lambda group: (
            *(order.index(name) for order, name in zip(orders, group[0], strict=False)),
            group[0][-1],
        ),
    )


def _row(ax: Axes, position: int, arm: pd.DataFrame) -> None:
    first = arm.iloc[0]
    hue = style.colour(first["strategy"])
    values = arm["value"].dropna().to_numpy()
    text = f"n = {first['n']}"
    if len(values):
        ax.plot([first["low"], first["high"]], [position] * 2, color=style.tint(hue, 0.35), lw=6,
                solid_capstyle="butt", zorder=2)  # fmt: skip
        ax.plot(
            first["median"], position, marker="|", markersize=12, markeredgewidth=1.8, color=hue
        )
        look: dict[str, Any] = {
            "marker": style.marker(first["strategy"]),
            "markersize": 4,
            "linestyle": "none",
        }
        spread = np.linspace(-0.16, 0.16, len(values)) if len(values) > 1 else np.zeros(1)
        ax.plot(values, position + spread, color=hue, zorder=3, **look)
        text = f"{three_digits(first['median'])}{interval(first)}  {text}"
    lost = int(arm["lost"].sum())
    labels.write(ax, text + (f", {lost} lost" if lost else ""), (1, position), (8, 0),
                 coords=ax.get_yaxis_transform())  # fmt: skip


def _name(strategy: str, loader: str, data_format: str, workers: int, formats: bool) -> str:
    read = style.loader_name(loader, data_format, formats)
    return f"{style.STRATEGY_NAMES[strategy]}, {read}, {workers_text(workers)}"


def _legend(repeats: pd.DataFrame) -> list[Line2D]:
    grey = style.UNNAMED_COLOUR
    dots = [
        Line2D([], [], linestyle="none", marker=style.marker(name), markersize=4,
               color=style.colour(name), label=f"{style.STRATEGY_NAMES[name]}: one run")
        for name in style.STRATEGY_NAMES
        if (repeats["strategy"] == name).any()
    ]  # fmt: skip
    return [
        *dots,
        Line2D([], [], linestyle="none", marker="|", markersize=10, markeredgewidth=1.8, color=grey,
               label="median"),
        Line2D([], [], color=style.tint(grey, 0.35), linewidth=6, label="95 % interval"),
    ]  # fmt: skip


def _left_out(repeats: pd.DataFrame, drawn: int) -> list[str]:
    rest = repeats.groupby(["panel", *_KEYS]).ngroups - drawn
    return [f"Rows not drawn, see the CSV: {rest}."] if rest else []
