"""The frame of a figure: title, legend, panels and caption, in inches, so that none overlap.

Saved as svg, pdf and png beside the plotted numbers, the same bytes each time.
"""

import io
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddl_core.analysis.plot import style
from ddl_core.errors import RecordError
from ddl_core.records.storage import write_atomically

MOST_PANELS = 6
_BETWEEN = "(: |, |" + style.SEPARATOR + ")"  # the items of a panel's name
STATED_ONLY = "No run measured here: only what the paper states."

# seaborn's theme in the sizes of a page, and what differs from it.
THEME: Any = {  # matplotlib's own type lists every key
    **sns.axes_style("ticks"),
    **sns.plotting_context("paper", font_scale=0.85),
    **style.PAGE,
}

P = ParamSpec("P")


@dataclass(frozen=True)
class Page:
    """What all figures of a study have in common, whatever they show."""

    study: str = ""  # several are joined by a plus; empty: of the paper alone
    notes: tuple[str, ...] = ()  # sentences that end the caption


_NO_PAGE = Page()
_page: ContextVar[Page] = ContextVar("page", default=_NO_PAGE)


@contextmanager
def on_page(page: Page) -> Iterator[None]:
    """Let the figures that are drawn in a ``with`` block say what is on their page."""
    token = _page.set(page)
    try:
        yield
    finally:
        _page.reset(token)


class LeftOut(str):
    """A sentence of a caption on what was measured and is not drawn: told on the terminal, too."""


class Sheet(Figure):
    """A figure that knows what it has no room for."""

    left_out: tuple[str, ...] = ()


_CAPTION_LINE = style.CAPTION_POINTS * 1.35 / 72
_TITLE_POINTS = 9.5
_TITLE = 0.32
_TITLE_LINE = 0.16  # a second one, and each after it
_NOTE = 0.2  # the line below the title that says whose numbers these are
_LEGEND_ROW = 0.18
_LEGEND_COLUMN = 1.8  # inches
_HANDLE, _COLUMN_GAP = 2.4, 1.4  # of a legend, times its letters' size
_MARGIN = 0.1
_PANEL_LINE = 0.16  # of a panel's name
_ABOVE_AXES = 0.12
_BELOW_AXES = 0.46  # tick labels and axis label

# No date, no version and no name of a program: nothing that differs when the picture does not.
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


def drawn_panels(points: pd.DataFrame) -> list[str]:
    """Return the panels that a figure has room for: the first ones and the last; or that none is.

    What a panel that is not drawn would show stands in the table beside the figure.
    """
    names = list(points["panel"].unique()) or ["nothing measured here yet"]
    return names[: MOST_PANELS - 1] + names[-1:] if len(names) > MOST_PANELS else names


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Make a function draw in the project's style without changing anybody else's."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with rc_context(THEME):
            return draw(*args, **kwargs)

    return inside


def frame(
    title: str,
    panels: Sequence[str],
    heights: Sequence[float],
    legend: Sequence[Artist],
    caption: Sequence[str],
    left: float = 0.6,
    right: Sequence[float] = (),
    note: str = "",
) -> tuple[Figure, list[Axes]]:
    """Return a figure and one axes per panel.

    The notes of the page end the caption, see `on_page`.

    Parameters
    ----------
    title
        The question.
    panels
        Names of the panels: what all have in common goes to the caption, see `short_titles`.
    heights
        Inches of each row of axes; with as many rows as panels they stand one below the other,
        else in two columns, where a last panel without a neighbour takes both.
    legend
        Handles, printed above the panels.
    caption
        Sentences, printed small below the panels.
    left
        Inches kept free left of each axes, for its labels.
    right
        Inches kept free right of each axes; empty for none.
    note
        Says that nothing in the figure was measured here. Such a figure is narrower and paler than
        others, so that nobody takes it for a result.
    """
    columns = 1 if len(heights) == len(panels) else 2
    page = style.STATED_WIDTH if note else style.WIDTH
    cell = (page - 2 * _MARGIN) / columns
    free = list(right) or [0.0] * len(panels)
    titles, shared = short_titles(panels)
    names = _names(titles, cell - left)
    name_lines = max(name.count("\n") + 1 for name in names)
    said = [f"All panels measured here: {shared}."] if shared else []
    told = " ".join([*caption, *said, *_page.get().notes])
    lines = wrapped(told, page - 2 * _MARGIN, style.CAPTION_POINTS)
    legend_rows = math.ceil(len(legend) / _legend_columns(page, legend))
    asked = wrapped(title, page - 2 * _MARGIN, _TITLE_POINTS, "normal" if note else "bold")
    above = _MARGIN + _TITLE + (len(asked) - 1) * _TITLE_LINE
    above += (_NOTE if note else 0) + _LEGEND_ROW * legend_rows
    over = _ABOVE_AXES + _PANEL_LINE * name_lines
    below = 2 * _MARGIN + len(lines) * _CAPTION_LINE
    total = above + below + sum(heights) + len(heights) * (over + _BELOW_AXES)
    figure = Sheet(figsize=(page, total))
    figure.left_out = tuple(one for one in caption if isinstance(one, LeftOut))
    axes: list[Axes] = []
    top = total - above
    for row, height in enumerate(heights):
        bottom = top - over - height
        for column in range(min(columns, len(panels) - row * columns)):
            x = _MARGIN + column * cell + left
            alone = column == 0 and len(axes) == len(panels) - 1
            width = cell * (columns if alone else 1) - left - free[len(axes)] - _MARGIN
            box = (x / page, bottom / total, width / page, height / total)
            axes.append(figure.add_axes(box))
            axes[-1].set_title(names[len(axes) - 1], loc="left", y=1.0)
            if note:
                _pale(axes[-1])
        top = bottom - _BELOW_AXES
    _texts(figure, asked, note, legend, lines)
    return figure, axes


def _legend_columns(page: float, legend: Sequence[Artist]) -> int:
    """Return how many columns a legend has: as many as a page has room for, if its names let it."""
    size = THEME["legend.fontsize"]
    beside = (_HANDLE + _COLUMN_GAP + 0.8) * size  # and matplotlib's gap between mark and name
    widths = [style.text_points(str(one.get_label()), size) + beside for one in legend]
    room = (page - 2 * _MARGIN) * 72
    most = round(page / _LEGEND_COLUMN)
    return next(
        (columns for columns in range(most, 1, -1)
         if sum(max(part, default=0) for part in np.array_split(widths, columns)) <= room),
        1,
    )  # fmt: skip


def _pale(ax: Axes) -> None:
    ax.spines[:].set_color(style.PALE)
    ax.tick_params(color=style.PALE, labelcolor=style.PALE_INK)


def short_titles(panels: Sequence[str]) -> tuple[list[str], str]:
    """Return what the names of panels do not have in common, and what they do.

    Names are lists as ``"laptop: 32 px, batch 16"``. One without a colon is of something else, such
    as the paper's own: it stays as it is. So does one that would have no word left.
    """
    lists = [re.split(_BETWEEN, name) for name in panels]
    ours = [items[::2] for name, items in zip(panels, lists, strict=True) if ": " in name]
    if len(ours) < 2:
        return list(panels), ""
    shared = [item for item in ours[0] if all(item in items for items in ours)]
    titles = []
    for name, items in zip(panels, lists, strict=True):
        between = ["", *items[1::2]]
        kept = [pair for pair in zip(between, items[::2], strict=True) if pair[1] not in shared]
        short = "".join(itertools.chain(*kept)).removeprefix(kept[0][0]) if kept else ""
        titles.append(short if short and ": " in name else name)
    return titles, ", ".join(dict.fromkeys(shared))


def _names(panels: Sequence[str], width: float) -> list[str]:
    letters = [f"({chr(ord('a') + number)}) " for number in range(len(panels))]
    size = THEME["axes.titlesize"]
    return [
        "\n".join(wrapped((letter if len(panels) > 1 else "") + name, width, size))
        for letter, name in zip(letters, panels, strict=True)
    ]


def wrapped(text: str, width: float, size: float, weight: str = "normal") -> list[str]:
    """Break `text` into lines that fit `width` inches at `size` points."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and style.text_points(longer, size, weight) > width * 72:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _texts(
    figure: Figure, title: Sequence[str], note: str, legend: Sequence[Artist], lines: Sequence[str]
) -> None:
    page, total = figure.get_size_inches()
    left, top = _MARGIN / page, total - _MARGIN
    look: dict[str, Any] = {"color": style.PALE_INK} if note else {"weight": "bold"}
    look |= {"parse_math": False}  # a study may ask for dollars
    figure.text(left, top / total, "\n".join(title), va="top", size=_TITLE_POINTS, **look)
    top -= (len(title) - 1) * _TITLE_LINE
    if note:
        figure.text(left, (top - _NOTE) / total, note, va="top", size=8.5, weight="bold")
        top -= _NOTE
    figure.legend(
        handles=list(legend),
        loc="upper left",
        bbox_to_anchor=(left, (top - 0.22) / total),
        ncols=_legend_columns(page, legend),
        borderaxespad=0,
        handlelength=_HANDLE,
        columnspacing=_COLUMN_GAP,
    )
    figure.text(
        left,
        (_MARGIN + len(lines) * _CAPTION_LINE) / total,
        "\n".join(lines),
        va="top",
        size=style.CAPTION_POINTS,
        linespacing=1.25,
        color="#333333",
    )


def save_figure(figure: Figure, data: pd.DataFrame, stem: Path) -> list[Path]:
    """Write ``<stem>.svg``, ``.pdf``, ``.png`` and ``.csv``, each atomically; return the paths.

    Parameters
    ----------
    figure
        What to save.
    data
        What is drawn in it. Floats are written with six significant digits.
    stem
        Path without suffix; its folder is made.

    Raises
    ------
    RecordError
        If the folder cannot be written or the disk is full.
    """
    *paths, table = _paths(stem)
    for path, (kind, metadata) in zip(paths, _METADATA.items(), strict=True):
        content = io.BytesIO()
        with rc_context(THEME):
            figure.savefig(content, format=kind, metadata=metadata)
        write_atomically(path, content.getvalue())
    write_atomically(table, data.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    return [*paths, table]


def remove_figure(stem: Path) -> bool:
    """Remove what `save_figure` wrote earlier, if it did: nothing may show runs that are gone.

    Returns
    -------
    bool
        Whether there was anything.

    Raises
    ------
    RecordError
        If a file cannot be removed.
    """
    found = [path for path in _paths(stem) if path.exists()]
    try:
        for path in found:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise RecordError(
            f"cannot remove {error.filename}, a figure of runs that are gone: {error.strerror}; "
            "remove it by hand"
        ) from None
    return bool(found)


def _paths(stem: Path) -> list[Path]:
    """Return the files of a figure, its numbers last."""
    return [stem.with_name(f"{stem.name}.{kind}") for kind in (*_METADATA, "csv")]
