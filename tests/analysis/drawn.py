"""What is read of the runs of a tree: tables, points and figures; fields of a small study."""

from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from ddl_tools.analysis import redraw
from ddl_tools.analysis.configurations import configuration_table
from ddl_tools.analysis.paper import read_paper
from ddl_tools.analysis.plot.canvas import caption_of
from ddl_tools.analysis.questions import OF_NO_RUN, QUESTIONS, Tables
from ddl_tools.analysis.tables import runs_table
from ddl_tools.records.paths import Tree

PAPER = read_paper()
ACCURACY: dict[str, Any] = {
    "study": "accuracy_tiny",
    "dataset": "fashion_mnist",
    "loader": "memory",
    "model": "resnet8",
    "train_images": 320,
}  # fields of its runs
DRAWN = [name for name, question in QUESTIONS.items() if question.draw]
OF_RUNS = [name for name in DRAWN if QUESTIONS[name].needs != OF_NO_RUN]


def configurations(tree: Tree) -> pd.DataFrame:
    return configuration_table(runs_table(tree))


def points_of(name: str, runs: pd.DataFrame) -> pd.DataFrame:
    """Return what the figure of this name shows of these runs."""
    return QUESTIONS[name].chosen(Tables(runs, configuration_table(runs), PAPER))


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


def leaves_the_page(figure: Figure) -> bool:
    """Say whether anything of a figure is drawn beyond its page."""
    figure.draw_without_rendering()
    drawn = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    return bool(min(drawn.x0, drawn.y0) < 0 or drawn.x1 > width or drawn.y1 > height)


def rows(figure: Figure) -> list[str]:
    """Return the names of all rows of a figure, each in one line, from the top."""
    names = [label.get_text() for ax in figure.axes for label in ax.get_yticklabels()]
    return [name.replace("\n", " ") for name in names]
