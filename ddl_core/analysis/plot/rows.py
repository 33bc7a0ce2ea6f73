"""Figures with a row per arm: their order, their names, their axes."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ddl_core.analysis.plot import style

MOST_ROWS = 24  # in all panels together, with a panel's frame as two: about a page
_LABEL_GAP_INCHES = 0.12


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
