"""Figures with a row per arm: their order, their names, their axes, what is told beside them.

Bars cut into shares: a bar for each arm, a panel for each setting. Ranked rows: the best on top,
with columns of numbers beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ddl_core.analysis.plot import captions, labels, style
from ddl_core.analysis.plot.canvas import THEME, drawn_panels, frame, styled, wrapped
from ddl_core.analysis.plot.scales import three_digits

MOST_LINES = 48  # of text in all panels together, with a panel's frame as four: about a page
MOST_RANKED = 60  # rows in all panels together, with a panel's frame as two: about a page
BAR = 0.66  # of a row

_LINE_INCHES = 0.21
_GAP_INCHES = 0.12
_MORE_INCHES = 0.13  # of a second line of a name
_NAME_INCHES = 2.9
_COLUMN_POINTS = 9.0  # between columns of texts
_LEAST_SHARE = 0.07  # of a bar that has room for its number
_ARM = ["framework", "world_size", "loader", "data_format", "hardware"]

Look = tuple[str, str]
"""Name and colour of a share."""

Texts = Callable[[pd.DataFrame], list[str]]
"""From the rows of one arm to the lines beside its bar."""


def row_frame(
    title: str,
    points: pd.DataFrame,
    legend: Sequence[Artist],
    caption: Sequence[str],
    texts: Texts,
    label: str = "throughput (images/s)",
    lines: int = 2,
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """Return a figure, and the axes of each panel that has points with those to draw there.

    Parameters
    ----------
    title
        The question.
    points
        Rows of arms, one or several for each, with ``panel`` and what an arm is. Those returned
        have a column ``row``: the place of their arm, from 0 on top.
    legend, caption
        As `frame` takes them; which arms found no room is added.
    texts
        What stands beside an arm.
    label
        Of the axis.
    lines
        Of text that a row is high: its name has as many.
    """
    points, panels = style.with_framework(points), drawn_panels(points)
    tables = [_numbered(points[points["panel"] == name]) for name in panels]
    most = _most_rows([table["row"].nunique() for table in tables], MOST_LINES // lines)
    tables = [table[table["row"] < most] for table in tables]
    arms = [[arm for _, arm in table.groupby("row")] for table in tables]
    formats = style.formats_differ(points)
    rest = _left_out(points, tables)
    lost = [arm_name(arm, formats) for _, arm in rest.iterrows()]
    names = [[arm_name(arm.iloc[0], formats, lines) for arm in panel] for panel in arms]
    told = [["\n".join(texts(arm)) for arm in panel] for panel in arms]
    figure, axes = frame(
        title,
        panels,
        [max(len(panel), 2) * lines * _LINE_INCHES for panel in arms],
        legend,
        [*caption, *captions.not_drawn("Rows", len(lost), lost)],
        left=_inches(names, THEME["ytick.labelsize"]),
        right=[_inches(told, labels.POINTS)] * len(panels),
    )
    for ax, panel, beside in zip(axes, names, told, strict=True):
        _row_axes(ax, panel, label)
        for row, text in enumerate(beside):
            labels.write(ax, text, (1, row), (8, 0), coords=ax.get_yaxis_transform())
    return figure, [(ax, table) for ax, table in zip(axes, tables, strict=True) if len(table)]


def best_rows(points: pd.DataFrame, always: pd.Series) -> pd.DataFrame:
    """Return the rows of each panel that a page has room for: the first ones, and some always.

    Parameters
    ----------
    points
        A row per arm with ``panel``, best first.
    always
        Whether a row stands in the figure however many there are: one of each panel.
    """
    tables = [points[points["panel"] == name] for name in drawn_panels(points)]
    most = _most_rows([len(table) for table in tables], MOST_RANKED)
    others = [(~always[table.index]).cumsum() < most for table in tables]
    kept = [table[few | always[table.index]] for table, few in zip(tables, others, strict=True)]
    return pd.concat(kept)


def ranked_rows(
    title: str,
    points: pd.DataFrame,
    legend: Sequence[Artist],
    caption: Sequence[str],
    columns: Mapping[str, Callable[[pd.Series], str]],
    label: str,
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """Return a figure of rows in the order given, with columns of texts right of the axes.

    Parameters
    ----------
    title, legend, caption
        As `frame` takes them.
    points
        A row per arm, with ``panel`` and its name, ``label``. Those returned have a column ``row``.
    columns
        The head of each column, and what stands in it beside an arm.
    label
        Of the axis.
    """
    names = list(points["panel"].unique()) or drawn_panels(points)
    tables = [points[points["panel"] == name] for name in names]
    tables = [table.assign(row=np.arange(len(table), dtype=float)) for table in tables]
    size = THEME["ytick.labelsize"]
    told = [["\n".join(wrapped(text, _NAME_INCHES, size)) for text in table["label"]]
            for table in tables]  # fmt: skip
    most = max((text.count("\n") for panel in told for text in panel), default=0)
    height = _LINE_INCHES + most * _MORE_INCHES
    cells = [
        {head: [text(row) for _, row in table.iterrows()] for head, text in columns.items()}
        for table in tables
    ]
    starts = _column_starts(cells)
    figure, axes = frame(
        title,
        names,
        [(max(len(table), 2) + 1) * height for table in tables],
        legend,
        caption,
        left=_inches(told, size),
        right=[starts[-1] / 72] * len(names),
    )
    for ax, panel, texts in zip(axes, told, cells, strict=True):
        _row_axes(ax, panel, label)
        ax.set_ylim(max(len(panel), 2) - 0.5, -1.5)
        for start, (head, column) in zip(starts, texts.items(), strict=False):
            for row, text in enumerate([head, *column], start=-1):
                labels.write(ax, text, (1, row), (start, 0), coords=ax.get_yaxis_transform())
    return figure, [(ax, table) for ax, table in zip(axes, tables, strict=True) if len(table)]


def _column_starts(panels: Sequence[Mapping[str, Sequence[str]]]) -> list[float]:
    """Return how far right of the axes each column of texts begins, and where the last ends."""
    starts = [_COLUMN_POINTS]
    for head in panels[0]:
        texts = [head, *(text for panel in panels for text in panel[head])]
        starts.append(starts[-1] + style.widest(texts, labels.POINTS) + _COLUMN_POINTS)
    return starts


def _left_out(points: pd.DataFrame, drawn: list[pd.DataFrame]) -> pd.DataFrame:
    """Return a row of each arm that is in no table: of panels that are cut, or not drawn at all."""
    arms = points.drop_duplicates(["panel", *_ARM])
    return arms[~arms.index.isin([place for table in drawn for place in table.index])]


def _numbered(table: pd.DataFrame) -> pd.DataFrame:
    """Return the arms in rows: loaders of one framework and number of workers stand together."""
    orders = {
        "framework": style.strategies,
        "loader": style.loaders,
        "data_format": style.formats,
    }
    ranks = table.assign(
        **{name: table[name].map(order(table[name]).index) for name, order in orders.items()}
    )
    arm = [*_ARM, *(name for name in ("second_start",) if name in ranks)]
    rows = ranks.groupby(arm, dropna=False).ngroup()
    return table.assign(row=rows.astype(float)).sort_values("row", kind="stable")


def _most_rows(lengths: list[int], room: int) -> int:
    """Return how many arms each panel may have, so that all fit with two rows' frame for each."""
    fitting = [each for each in range(1, room + 1)
               if sum(min(each, length) + 2 for length in lengths) <= room]  # fmt: skip
    return max(fitting)


def arm_name(row: pd.Series, formats: bool, lines: int = 1) -> str:
    """Return what an arm is called, in one line or two, with the format it reads if `formats`.

    Its row has the column ``framework``.
    """
    loader = style.loader_name(row["loader"], row["data_format"], formats)
    workers = f"{row['world_size']} worker{'s' if row['world_size'] > 1 else ''}"
    workers += " (second start)" if row.get("second_start") else ""
    framework = style.strategy_name(row["framework"])
    parts = (
        (f"{framework}, {loader}", workers) if lines == 1 else (f"{loader}\n{framework}", workers)
    )
    return ", ".join(parts)


def _inches(panels: Sequence[Sequence[str]], size: float) -> float:
    """Return the room beside the axes for the texts at its rows, `size` points high."""
    lines = [line for panel in panels for text in panel for line in text.splitlines()]
    return style.widest(lines, size) / 72 + _GAP_INCHES


def _row_axes(ax: Axes, names: Sequence[str], label: str) -> None:
    """Give each name a row, the first on top, and x its `label`."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(max(len(names), 2) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.set_xlabel(label)
    ax.set_ylabel(" ")  # empty, seaborn would write the column's name


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
    causes = set(points.loc[points["value"] > 0, "cause"])
    legend = [Patch(label=name, color=hue) for key, (name, hue) in looks.items() if key in causes]
    figure, panels = row_frame(title, points, legend, _caption(points, caption), texts, label)
    for ax, table in panels:
        sns.histplot(
            table,
            y="row",
            weights="value",
            hue="cause",
            hue_order=list(looks)[::-1],  # the last one is drawn first, at the axis
            palette={cause: hue for cause, (_, hue) in looks.items()},
            multiple="stack",
            discrete=True,
            shrink=BAR,
            alpha=1,
            linewidth=0,
            legend=False,
            ax=ax,
        )
        for bars in ax.containers:
            _numbers(ax, bars)
        ax.set_xlim(0, 1)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure


def _numbers(ax: Axes, bars: Any) -> None:
    """Write the shares into bars that have room, black or white, whichever can be read."""
    assert isinstance(bars, BarContainer)
    shares = [bar.get_width() for bar in bars]
    red, green, blue = to_rgb(bars[0].get_facecolor())
    ink = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
    texts = [f"{share:.0%}" if share >= _LEAST_SHARE else "" for share in shares]
    ax.bar_label(bars, texts, label_type="center", size=labels.POINTS, color=ink)


def _caption(points: pd.DataFrame, sentences: Sequence[str]) -> list[str]:
    measured = style.with_framework(points).drop_duplicates(["panel", *_ARM])
    if measured.empty:
        return ["Nothing measured here yet."]
    return [
        *sentences,
        _how_often(measured["n"]),
        *captions.machines(measured),
        captions.commits(measured),
    ]


def _how_often(n: pd.Series) -> str:
    if n.max() > 1:
        return f"Mean of {captions.counted('n', n)} runs."
    return "One run an arm (n = 1): nothing here says how much another run would differ."


def percent(share: float, signed: bool = False) -> str:
    """Return a share for people, e.g. ``"12 %"``."""
    sign: Any = "+" if signed else ""
    return f"{100 * share:{sign}.0f} %".replace("-", "\N{MINUS SIGN}")


def interval(row: pd.Series) -> str:
    """Return the interval of a row as text, nothing where it has none."""
    if np.isnan(row["low"]):
        return ""
    return f" [{three_digits(row['low'])}, {three_digits(row['high'])}]"
