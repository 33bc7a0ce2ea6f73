"""The frame of a figure (title, legend, panels, line below), laid out by matplotlib, and its files.

Saved as svg, pdf and png beside the plotted numbers, the same bytes each time.
"""

import io
import math
import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.style import context as style_context

from ddl_core.errors import RecordError
from ddl_tools.analysis.csv_file import to_csv
from ddl_tools.analysis.plot import captions, style
from ddl_tools.records.storage import require_ours, write_atomically

MOST_PANELS = 6
DIGITS = 6  # of the numbers beside a figure
STATED_ONLY = "No run measured here: only what the paper states."

# seaborn's theme in the sizes of a page, and what differs from it.
THEME: Any = {  # matplotlib's own type lists every key
    **sns.axes_style("ticks"),
    **sns.plotting_context("paper", font_scale=0.85),
    **style.PAGE,
}
_TITLE_POINTS = 9.5
_MARGIN = 0.09  # inches left and right of title and line, and between titles of panels
_MARK = 0.7  # inches that a legend has for the mark of a label and the space around it
_DASHED = 4.5  # length of a dashed line in a legend
_HIGH = 50.0  # inches, more than all that stands around the panels

# No date, no version and no name of a program: nothing that differs when the picture does not.
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Make a function draw in the project's style, and lay out the figure made by `frame`.

    It is laid over matplotlib's defaults, whatever a matplotlibrc says, and taken off afterwards.
    """

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style_context(["default", THEME]):
            figure = draw(*args, **kwargs)
            _lay_out(figure)
            return figure

    return inside


def _lay_out(figure: Figure) -> None:
    """Break the titles of panels into lines, and make the figure as high as its parts need.

    Positions are rounded: the solver's last digits depend on addresses in memory, and the files of
    a figure must not.
    """
    grid = figure.axes[0].get_gridspec()
    assert grid is not None  # of `frame`
    titles = [ax.get_title("left") for ax in figure.axes]
    for ax in figure.axes:  # matplotlib counts half the width of a title
        ax.set_title("", loc="left")
    figure.draw_without_rendering()
    width, height = figure.get_size_inches()
    lefts = [ax.get_position().x0 * width for ax in figure.axes[: grid.ncols]]
    ends = [*(left - _MARGIN for left in lefts[1:]), width - _MARGIN / 2]
    for number, (ax, title) in enumerate(zip(figure.axes, titles, strict=True)):
        room = ends[number % grid.ncols] - lefts[number % grid.ncols]
        lines = style.wrapped(title, room, size=rcParams["axes.titlesize"])
        ax.set_title(lines, loc="left")
    figure.draw_without_rendering()
    axes = height * sum(ax.get_position().height for ax in figure.axes[:: grid.ncols])
    figure.set_figheight(round(height - axes + float(np.sum(grid.get_height_ratios())), 2))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for ax in figure.axes:
        left, bottom, across, up = ax.get_position().bounds
        ax.set_position((round(left, 4), round(bottom, 4), round(across, 4), round(up, 4)))


def drawn_panels(points: pd.DataFrame) -> list[str]:
    """Return the panels that a figure has room for: the first ones and the last."""
    names = list(points["panel"].unique()) or ["nothing measured here yet"]
    return names[: MOST_PANELS - 1] + names[-1:] if len(names) > MOST_PANELS else names


def panel_figure(
    title: str,
    points: pd.DataFrame,
    legend: Sequence[Artist],
    caption: Sequence[str],
    height: float,
    columns: int = 1,
    note: str = "",
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """Return a figure, and the axes of each panel of `points` with the points to draw there.

    Panels are `height` inches high, in so many `columns`. The rest is as `frame` takes it.
    """
    names = drawn_panels(points)
    caption = [*caption, *captions.not_drawn("Panels", points["panel"].nunique() - len(names))]
    heights = [height] * math.ceil(len(names) / columns)
    figure, axes = frame(title, names, heights, legend, caption, note, captions.line(points))
    parts = [points[points["panel"] == name] for name in names]
    return figure, list(zip(axes, parts, strict=True))


def frame(
    title: str,
    panels: Sequence[str],
    heights: Sequence[float],
    legend: Sequence[Artist],
    caption: Sequence[str],
    note: str = "",
    line: str = "",
) -> tuple[Figure, list[Axes]]:
    """Return a figure and one axes per panel; `caption_of` has its caption.

    It gets its height from `styled`, when all is drawn.

    Parameters
    ----------
    title
        The finding.
    panels
        Names of the panels; what all share is in the caption.
    heights
        Inches of each row of axes: one below the other, or fewer rows with several panels each.
    legend
        Handles, printed below the title.
    caption
        Sentences for the text beside the figure: data, interval.
    note
        Says that nothing in the figure was measured here. Such a figure is narrower and paler than
        others, so that it is not taken for a result.
    line
        Drawn in grey below the panels: hardware, number of starts, commit. Ends the caption.
    """
    width = style.STATED_WIDTH if note else style.WIDTH
    columns = math.ceil(len(panels) / len(heights))
    layout = ConstrainedLayoutEngine(hspace=0)  # which would be a share of the height
    figure = Figure(figsize=(width, sum(heights) + _HIGH), layout=layout)
    grid = figure.add_gridspec(len(heights), columns, height_ratios=list(heights))
    names, shared = _panel_names(panels)
    for place, name in enumerate(names):
        ax = figure.add_subplot(grid[divmod(place, columns)])
        ax.set_title(name, loc="left")
        if note:
            ax.spines[:].set_color(style.PALE)
            ax.tick_params(color=style.PALE, labelcolor=style.PALE_INK)
    top = _legend(figure, legend, width - 2 * _MARGIN)
    # The title is that of the legend: matplotlib would print a title of the figure over it.
    font: Any = {"size": _TITLE_POINTS, "weight": "normal" if note else "bold"}
    title = title[:1].upper() + title[1:] + ("." if note else "")
    head = style.wrapped(title, width - 2 * _MARGIN, commas=False, **font)
    top.set_title("\n".join(filter(None, [head, note])), font)
    below = style.wrapped(line, width - 2 * _MARGIN, size=style.CAPTION_POINTS)
    figure.supxlabel(
        below,
        x=_MARGIN / width,
        ha="left",
        size=style.CAPTION_POINTS,
        linespacing=1.25,
        color=style.PALE_INK,
    )
    add_caption(figure, [*shared, *caption, *([f"{line}."] if line else [])])
    return figure, figure.axes


def _legend(figure: Figure, legend: Sequence[Artist], width: float) -> Legend:
    """Return a legend above the panels, in as few rows as a width in inches has room for."""
    for one in legend:
        label = str(one.get_label())
        one.set_label(style.wrapped(label, width - _MARK, size=rcParams["legend.fontsize"]))
    dashed = any(isinstance(one, Line2D) and one.get_linestyle() == "--" for one in legend)
    look: Any = {"loc": "outside upper left", "alignment": "left"}
    rows = 1
    while True:
        columns = max(1, math.ceil(len(legend) / rows))
        made = figure.legend(
            handles=list(legend), ncols=columns, handlelength=_DASHED if dashed else None, **look
        )
        if columns == 1 or made.get_window_extent().width <= width * figure.dpi:
            return made
        made.remove()
        rows += 1


def _panel_names(panels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the titles of panels, and a sentence on what they share.

    Names are lists as ``"laptop: 32 px, batch 16"``: what all have in common is not repeated. One
    without a colon is of something else, such as the paper's own, and stays as it is.
    """
    lists = {name: re.split(f": |, |{style.SEPARATOR}", name) for name in panels if ": " in name}
    if len(lists) < 2:
        lists = {}
    shared = [
        item
        for item in next(iter(lists.values()), [])
        if all(item in items for items in lists.values())
    ]
    short = {
        name: ", ".join(item for item in items if item not in shared)
        for name, items in lists.items()
    }
    begin = [f"({letter}) " if len(panels) > 1 else "" for letter in "abcdefghij"]
    names = [
        letter + (short.get(name) or name) for letter, name in zip(begin, panels, strict=False)
    ]
    return names, [f"{', '.join(dict.fromkeys(shared))}."] if shared else []


def caption_of(figure: Figure) -> str:
    """Return the caption of a figure made by `frame`: the text to be shown beside it."""
    return str(figure.get_label())


def title_of(figure: Figure) -> str:
    """Return the finding that is the title of a figure made by `frame`, in one line."""
    return figure.legends[0].get_title().get_text().replace("\n", " ")


def add_caption(figure: Figure, sentences: Sequence[str]) -> None:
    """End the caption of a figure with more sentences."""
    figure.set_label(" ".join(filter(None, [caption_of(figure), *sentences])))


def handles(looks: style.Looks, end: str = "", **look: Any) -> list[Line2D]:
    """Return a mark for the legend for each name, with `end` after it."""
    return [
        Line2D([], [], label=name + end, **{"linestyle": "none", **one, **look})
        for name, one in looks.items()
    ]


def save_figure(
    figure: Figure, data: pd.DataFrame, stem: Path, *, known: bool = False
) -> list[Path]:
    """Write ``<stem>.svg``, ``.pdf``, ``.png`` and ``.csv``, each atomically; return the paths.

    `RecordError` if the folder cannot be written or the disk is full, or if one of them is there
    that is nobody's figure: one is `known`, or has numbers of these columns beside it.

    Floats of `data`, which is what is drawn, have six significant digits in the file. `stem` is a
    path without suffix; its folder is made.
    """
    *paths, _ = _paths(stem)
    contents = [io.BytesIO() for _ in paths]
    with style_context(["default", THEME]):
        for content, (kind, metadata) in zip(contents, _METADATA.items(), strict=True):
            figure.savefig(content, format=kind, metadata=metadata)
    table = save_numbers(data, stem, known=known)  # first: it says whose the others are
    for path, content in zip(paths, contents, strict=True):
        write_atomically(path, content.getvalue())
    return [*paths, table]


def save_numbers(data: pd.DataFrame, stem: Path, *, known: bool = False) -> Path:
    """Write the numbers of a figure alone, ``<stem>.csv``, as `save_figure` does."""
    table = _paths(stem)[-1]
    text = to_csv(data, DIGITS)
    if not known:
        require_our_figure(stem, text.partition("\n")[0])
    write_atomically(table, text)
    return table


def require_our_figure(stem: Path, header: str, **how: Any) -> None:
    """Refuse to replace the files of a figure unless its numbers begin with `header`.

    `how` as in `require_ours`.
    """
    *pictures, table = _paths(stem)
    require_ours(table, header, **how)
    if not table.exists():
        for path in pictures:
            require_ours(path, None, **how)


def remove_figure(stem: Path) -> None:
    """Remove what `save_figure` wrote earlier, if it did: nothing may show runs that are gone.

    `RecordError` if a file cannot be removed.
    """
    try:
        for path in _paths(stem):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise RecordError(
            f"cannot remove {error.filename}, a figure of runs that are gone: {error.strerror}; "
            "remove it by hand"
        ) from None


def _paths(stem: Path) -> list[Path]:
    """Return the files of a figure, its numbers last."""
    return [stem.with_name(f"{stem.name}.{kind}") for kind in (*_METADATA, "csv")]
