"""The frame of a figure (title, legend, panels, line below), laid out by matplotlib, and its files.

Saved as svg, pdf and png beside the plotted numbers, the same bytes each time.
"""

import io
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddl_core.errors import RecordError
from ddl_tools.analysis.plot import captions, style
from ddl_tools.records.storage import write_atomically

MOST_PANELS = 6
STATED_ONLY = "No run measured here: only what the paper states."
LEFT = 0.012  # of the figure, where title and line begin

# seaborn's theme in the sizes of a page, and what differs from it.
THEME: Any = {  # matplotlib's own type lists every key
    **sns.axes_style("ticks"),
    **sns.plotting_context("paper", font_scale=0.85),
    **style.PAGE,
}
# Letters that fit an inch.
_TITLE_LETTERS, _PANEL_LETTERS, _LEGEND_LETTERS, _LINE_LETTERS = 11.5, 14.5, 16.0, 18.0
_TITLE_LINE, _LEGEND_LINE, _LAST_LINE, _PANEL_LINE = 0.17, 0.19, 0.135, 0.15  # inches
_AROUND_AXES = 0.55  # tick labels, axis label and the space between panels, inches
_HANDLE_LETTERS = 7  # of a legend: its mark and the space between columns
_DASHED, _DASHED_LETTERS = 4.5, 4  # length of a dashed line in a legend, letters more than others

# No date, no version and no name of a program: nothing that differs when the picture does not.
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Make a function draw in the project's style without changing anybody else's."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with rc_context(THEME):
            return draw(*args, **kwargs)

    return inside


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
    title = title[:1].upper() + title[1:] + ("." if note else "")
    head = textwrap.wrap(title, int(width * _TITLE_LETTERS)) + ([note] if note else [])
    dashed = any(isinstance(one, Line2D) and one.get_linestyle() == "--" for one in legend)
    longest = max((len(str(one.get_label())) for one in legend), default=1) + _HANDLE_LETTERS
    longest += _DASHED_LETTERS * dashed
    beside = max(1, min(len(legend), int(width * _LEGEND_LETTERS / longest)))
    names, shared = _panel_names(panels, int(width * _PANEL_LETTERS / columns))
    lines = textwrap.wrap(line, int(width * _LINE_LETTERS))
    above = _PANEL_LINE * max(name.count("\n") + 1 for name in names)
    height = (
        len(head) * _TITLE_LINE
        + math.ceil(len(legend) / beside) * _LEGEND_LINE
        + sum(heights)
        + len(heights) * (above + _AROUND_AXES)
        + len(lines) * _LAST_LINE
    )
    figure = Figure(figsize=(width, height + 0.1), layout="constrained")
    grid = figure.add_gridspec(len(heights), columns, height_ratios=list(heights))
    axes = [figure.add_subplot(grid[divmod(place, columns)]) for place in range(len(panels))]
    for ax, name in zip(axes, names, strict=True):
        ax.set_title(name, loc="left", parse_math=False)  # it names a machine
        if note:
            ax.spines[:].set_color(style.PALE)
            ax.tick_params(color=style.PALE, labelcolor=style.PALE_INK)
    # The title is that of the legend: matplotlib would print a title of the figure over it.
    top = figure.legend(
        handles=list(legend),
        loc="outside upper left",
        ncols=beside,
        handlelength=_DASHED if dashed else None,
        title="\n".join(head),
        alignment="left",
        title_fontproperties={"size": 9.5, "weight": "normal" if note else "bold"},
    )
    top.get_title().set_parse_math(False)  # a study may ask for dollars
    figure.supxlabel("\n".join(lines), x=LEFT, ha="left", size=style.CAPTION_POINTS,
                     linespacing=1.25, color=style.PALE_INK, parse_math=False)  # fmt: skip
    add_caption(figure, [*shared, *caption, *([f"{line}."] if line else [])])
    return figure, axes


def _panel_names(panels: Sequence[str], letters: int) -> tuple[list[str], list[str]]:
    """Return the titles of panels in lines of so many letters, and a sentence on what they share.

    Names are lists as ``"laptop: 32 px, batch 16"``: what all have in common is not repeated. One
    without a colon is of something else, such as the paper's own, and stays as it is.
    """
    lists = {name: re.split(f": |, |{style.SEPARATOR}", name) for name in panels if ": " in name}
    if len(lists) < 2:
        lists = {}
    shared = [item for item in next(iter(lists.values()), [])
              if all(item in items for items in lists.values())]  # fmt: skip
    short = {
        name: ", ".join(item for item in items if item not in shared)
        for name, items in lists.items()
    }
    begin = [f"({letter}) " if len(panels) > 1 else "" for letter in "abcdefghij"]
    names = [
        textwrap.fill(letter + (short.get(name) or name), letters)
        for letter, name in zip(begin, panels, strict=False)
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


def save_figure(figure: Figure, data: pd.DataFrame, stem: Path) -> list[Path]:
    """Write ``<stem>.svg``, ``.pdf``, ``.png`` and ``.csv``, each atomically; return the paths.

    `RecordError` if the folder cannot be written or the disk is full.

    Floats of `data`, which is what is drawn, have six significant digits in the file. `stem` is a
    path without suffix; its folder is made.
    """
    *paths, _ = _paths(stem)
    with rc_context(THEME):
        _settle(figure)
        for path, (kind, metadata) in zip(paths, _METADATA.items(), strict=True):
            content = io.BytesIO()
            figure.savefig(content, format=kind, metadata=metadata)
            write_atomically(path, content.getvalue())
    return [*paths, save_numbers(data, stem)]


def save_numbers(data: pd.DataFrame, stem: Path) -> Path:
    """Write the numbers of a figure alone, ``<stem>.csv``, as `save_figure` does."""
    *_, table = _paths(stem)
    write_atomically(table, data.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    return table


def _settle(figure: Figure) -> None:
    """Lay the figure out, and round where its axes are.

    The solver's last digits depend on addresses in memory, and the files of a figure must not.
    """
    figure.set_dpi(THEME["savefig.dpi"])  # letters are as wide as the resolution makes them
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = axes.get_position(original=True).bounds
        axes.set_position((round(left, 4), round(bottom, 4), round(width, 4), round(height, 4)))


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
