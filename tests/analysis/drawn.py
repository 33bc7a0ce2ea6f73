"""What is read of the runs of a tree: tables, points and figures; fields of a small study."""

import itertools
from typing import Any

import pandas as pd
import pytest
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

from ddl_core.config import LONGEST_NAME
from ddl_tools import markdown
from ddl_tools.analysis import redraw
from ddl_tools.analysis.configurations import configuration_table
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.paper import read_paper
from ddl_tools.analysis.plot.canvas import THEME, caption_of, title_of
from ddl_tools.analysis.question import OF_NO_RUN, Question, Tables
from ddl_tools.analysis.tables import runs_table
from ddl_tools.records.paths import Tree

PAPER = read_paper()
LONG = ("as_long_as_a_name_can_be_" * 4)[:LONGEST_NAME]
ACCURACY: dict[str, Any] = {
    "study": "accuracy_tiny",
    "dataset": "fashion_mnist",
    "loader": "memory",
    "model": "resnet8",
    "train_images": 320,
}  # fields of its runs
DRAWN = [name for name, question in QUESTIONS.items() if type(question).draw is not Question.draw]
OF_RUNS = [name for name in DRAWN if QUESTIONS[name].needs != OF_NO_RUN]


def configurations(tree: Tree) -> pd.DataFrame:
    return configuration_table(runs_table(tree))


def points_of(name: str, runs: pd.DataFrame) -> pd.DataFrame:
    """Return what the figure of this name shows of these runs."""
    return QUESTIONS[name].points(Tables(runs, configuration_table(runs), PAPER))


def draw_only(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Let `redraw` draw these figures alone, into empty files: all of a study take 10 s."""
    patch.setattr(Figure, "savefig", lambda *_, **__: None)
    patch.setattr(redraw, "QUESTIONS", {name: QUESTIONS[name] for name in names})


def words(figure: Figure) -> str:
    """Return every word of a figure and its caption, in one line."""
    figure.draw_without_rendering()
    texts = [text.get_text() for text in figure.findobj(Text)]
    return " ".join(" ".join([*texts, caption_of(figure)]).split())


def beside(figure: Figure) -> list[str]:
    """Return the texts right of the rows of a figure, heads included."""
    figure.draw_without_rendering()
    right = [axis for ax in figure.axes for axis in ax.child_axes]
    return [label.get_text() for axis in right for label in axis.get_yticklabels()]


def misplaced(figure: Figure) -> list[str]:
    """Return what of a figure, as it is saved, lies beyond its page or over a neighbour."""
    with rc_context(THEME):
        figure.set_dpi(THEME["savefig.dpi"])
        figure.draw_without_rendering()
        parts: list[Artist] = [*figure.legends, *figure.texts]
        groups = [parts]  # of what must not overlap
        for legend in figure.legends:
            groups.append([legend.get_title(), *legend.get_texts()])
        for ax in figure.axes:
            groups.append(list(ax.texts))
            sides = [ax.xaxis, ax.yaxis, *(side.yaxis for side in ax.child_axes)]
            titles = [one for one in ax.get_children() if isinstance(one, Text)]
            parts += [ax.patch, *(one for one in titles if one not in ax.texts)]
            parts += [text for side in sides for text in [side.label, *_shown(side)]]
        boxes = [[(str(one), one.get_tightbbox()) for one in group] for group in groups]
        drawn = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    inside = min(drawn.min) >= 0 and drawn.x1 <= width and drawn.y1 <= height
    found = [] if inside else [f"the page is {width} x {height}, what is drawn is {drawn}"]
    for group in boxes:
        known = [(name, box.padded(-1)) for name, box in group if box and box.width > 2]
        pairs = itertools.combinations(known, 2)
        found += [f"{one} is over {other}" for (one, a), (other, b) in pairs if a.overlaps(b)]
    return found


def _shown(axis: Axis) -> list[Text]:
    """Return the labels of an axis that are drawn: not those beyond its ends."""
    low, high = sorted(axis.get_view_interval())
    return [
        tick.label2 if tick.label2.get_visible() else tick.label1
        for tick in axis.get_major_ticks()
        if low <= tick.get_loc() <= high
    ]


def texts(question: Question, points: pd.DataFrame) -> str:
    """Return all that a question says of points, as Markdown."""
    if not question.answered_by(points, of_runs=False):
        return f"Title: {question.title(points)}\n"
    figure, table = question.figure(points), question.table(points)
    lines = [f"- {one}" for one in question.sentences(points)]
    if figure:
        lines = [f"Title: {title_of(figure)}", "", *lines, "", caption_of(figure)]
    return "\n".join([*lines, "", markdown.table(list(table), table.to_numpy()), ""])


def rows(figure: Figure) -> list[str]:
    """Return the names of all rows of a figure, each in one line, from the top."""
    names = [label.get_text() for ax in figure.axes for label in ax.get_yticklabels()]
    return [name.replace("\n", " ") for name in names]
