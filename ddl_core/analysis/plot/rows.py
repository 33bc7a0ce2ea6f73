"""Figures with a row per arm: their order, their names, their axes.

Bars cut into shares: a bar for each arm, a panel for each setting, the rest told beside it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ddl_core.analysis.plot import captions, labels, style
from ddl_core.analysis.plot.canvas import drawn_panels, frame, styled
from ddl_core.analysis.plot.scales import three_digits

MOST_ROWS = 24  # in all panels together, with a panel's frame as two: about a page
_LABEL_GAP_INCHES = 0.12

_ROW_INCHES = 0.42
_LABEL_INCHES = 1.5
_NUMBER_INCHES = 1.0
_LEAST_SHARE = 0.07  # of a bar that has room for its number
_ARM = ["strategy", "loader", "data_format", "world_size"]

Look = tuple[str, str]
"""Name and colour of a share."""

Texts = Callable[[pd.DataFrame], list[str]]
"""From the rows of one arm to the lines beside its bar."""


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Return the arms so that loaders of one strategy and number of workers stand together."""
    orders = {
        "strategy": list(style.STRATEGY_NAMES),
        "loader": list(style.LOADER_NAMES),
        "data_format": list(style.FORMAT_NAMES),
    }
    ranks = table.assign(
        **{column: table[column].map(order.index) for column, order in orders.items()}
    )
    keys = ["strategy", "world_size", "loader", "data_format"]
    return table.loc[ranks.sort_values(keys, kind="stable").index]


def most_rows(lengths: list[int]) -> int:
    """Return how many arms each panel may have, so that no figure has more than `MOST_ROWS`."""
    fitting = [each for each in range(1, MOST_ROWS + 1)
               if sum(min(each, length) + 2 for length in lengths) <= MOST_ROWS]  # fmt: skip
    return max(fitting)


def arm_name(row: dict[str, Any], formats: bool) -> str:
    """Return what an arm is called, in two lines."""
    loader = style.loader_name(row["loader"], row["data_format"], formats)
    return f"{loader}\n{style.STRATEGY_NAMES[row['strategy']]}, {workers_text(row['world_size'])}"


def label_inches(names: Sequence[str], least: float, size: float = style.RC["font.size"]) -> float:
    """Return the room beside the axes for lines of text at its rows, `size` points high."""
    lines = [line for name in names for line in name.splitlines()]
    widest = max((style.text_points(line, size) for line in lines), default=0.0)
    return max(least, widest / 72 + _LABEL_GAP_INCHES)


def row_axes(ax: Axes, names: Sequence[str], label: str = "throughput (images/s)") -> None:
    """Give each name a row, the first on top, and x its `label`."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(max(len(names), 2) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.set_xlabel(label)


def workers_text(workers: int) -> str:
    """Return e.g. ``"2 workers"``."""
    return f"{workers} worker{'s' if workers > 1 else ''}"


@styled
def stacked(
    points: pd.DataFrame,
    title: str,
    looks: dict[str, Look],
    texts: Texts,
    label: str,
    caption: Sequence[str],
) -> Figure:
    """Return a figure with a bar per arm.

    Parameters
    ----------
    points
        A row per arm and cause: ``panel``, what an arm is, ``n``, ``cause``, ``value`` (0 to 1),
        ``hardware``, ``on_cpu`` and ``commit``. The values of an arm sum to 1.
    title
        The question.
    looks
        Each cause, in the order of the legend.
    texts
        What stands beside an arm's bar.
    label
        Of the axis.
    caption
        Sentences on what is shown; those on runs, hardware and commit are added.
    """
    panels = drawn_panels(points) or ["nothing measured here yet"]
    tables = [in_order(points[points["panel"] == name]) for name in panels]
    arms = [[arm for _, arm in table.groupby(_ARM, sort=False)] for table in tables]
    most = most_rows([len(panel) for panel in arms])
    arms = [panel[:most] for panel in arms]
    formats = style.formats_differ(points)
    names = [[arm_name(arm.iloc[0].to_dict(), formats) for arm in panel] for panel in arms]
    told = [["\n".join(texts(arm)) for arm in panel] for panel in arms]
    figure, axes = frame(
        title,
        panels,
        [max(len(panel), 2) * _ROW_INCHES for panel in arms],
        _legend(points, looks),
        _caption(points, caption, sum(map(len, arms))),
        left=label_inches([name for panel in names for name in panel], _LABEL_INCHES),
        right=[
            label_inches([text for panel in told for text in panel], _NUMBER_INCHES, labels.POINTS)
        ]
        * len(panels),
    )
    for ax, panel, beside, labelled in zip(axes, arms, told, names, strict=True):
        for position, (arm, text) in enumerate(zip(panel, beside, strict=True)):
            _bar(ax, position, arm, looks)
            labels.write(ax, text, (1, position), (8, 0), coords=ax.get_yaxis_transform())
        ax.set_xlim(0, 1)
        row_axes(ax, labelled, label)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure


def _bar(ax: Axes, position: int, arm: pd.DataFrame, looks: dict[str, Look]) -> None:
    left = 0.0
    for row in arm.to_dict("records"):
        _, hue = looks[row["cause"]]
        ax.barh(position, row["value"], left=left, height=0.66, linewidth=0, color=hue, zorder=2)
        if row["value"] >= _LEAST_SHARE:
            ax.text(left + row["value"] / 2, position, f"{row['value']:.0%}", ha="center",
                    va="center", size=labels.POINTS, color=_ink(hue), zorder=3)  # fmt: skip
        left += row["value"]


def _ink(hue: str) -> str:
    """Return black or white, whichever can be read on a bar."""
    red, green, blue = (int(hue[at : at + 2], 16) for at in (1, 3, 5))
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else "white"


def _legend(points: pd.DataFrame, looks: dict[str, Look]) -> list[Patch]:
    causes = set(points.loc[points["value"] > 0, "cause"])
    return [Patch(label=name, color=hue) for cause, (name, hue) in looks.items() if cause in causes]


def _caption(points: pd.DataFrame, sentences: Sequence[str], drawn: int) -> list[str]:
    measured = points.drop_duplicates(["panel", *_ARM])
    if measured.empty:
        return ["Nothing measured here yet."]
    rest = len(measured) - drawn
    return [
        *sentences,
        f"Mean of {captions.counted('n', measured['n'])} runs.",
        *captions.machines(measured),
        captions.commits(measured),
        *([f"Rows not drawn, see the CSV: {rest}."] if rest else []),
    ]


def percent(share: float, signed: bool = False) -> str:
    """Return a share for people, e.g. ``"12 %"``."""
    sign: Any = "+" if signed else ""
    return f"{100 * share:{sign}.0f} %".replace("-", "\N{MINUS SIGN}")


def interval(row: pd.Series) -> str:
    """Return the interval of a row as text, nothing where it has none."""
    if np.isnan(row["low"]):
        return ""
    return f" [{three_digits(row['low'])}, {three_digits(row['high'])}]"
