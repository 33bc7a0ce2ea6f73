"""A result as notebooks show it: the answer, the figure with its caption, and a table."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.plot import captions
from ddl_tools.analysis.plot.canvas import caption_of
from ddl_tools.analysis.question import OF_NO_RUN, Tables
from ddl_tools.analysis.redraw import tables_of
from ddl_tools.analysis.tables import counts, runs_table, windows_table
from ddl_tools.markdown import Markdown, code, escape
from ddl_tools.records.ledger import listed
from ddl_tools.records.paths import Tree, committed, existing
from ddl_tools.visible import visible

pd.set_option("display.max_colwidth", None)  # notebooks show whole names
pd.set_option("display.html.use_mathjax", False)  # a name may have dollars


@dataclass(frozen=True)
class Result:
    """The answer to the question of a figure, e.g. "comparison".

    `points` is None where there is none. `origin` is a sentence, in Markdown, on the runs that
    answer, empty where the paper does; without an answer, the reason. `tables` are what the points
    are made of.
    """

    name: str
    points: pd.DataFrame | None
    origin: str = ""
    tables: Tables | None = None

    @property
    def answer(self) -> Markdown:
        """At most four sentences with numbers, and the study that they are from."""
        if self.points is None:
            needs = f"No run here answers this question. It needs {QUESTIONS[self.name].needs}."
            return Markdown(self.origin or needs)
        sentences = QUESTIONS[self.name].sentences(self.points)
        items = [f"- {escape(one)}" for one in sentences]
        return Markdown("\n".join([*items, "", self.origin]).strip())

    @property
    def parts(self) -> list[object]:
        """The figure that `ddl figures` draws, its caption, and a table of at most ten rows.

        Points that are not enough for a figure have the table and a line on their origin.
        """
        if self.points is None:
            return []
        figure = QUESTIONS[self.name].figure(self.points, self.tables)
        caption = caption_of(figure) if figure else captions.undrawn(self.points)
        table = QUESTIONS[self.name].table(self.points).map(visible)
        shown = [figure] if figure else []
        return [*shown, Markdown(f"*{escape(caption)}*"), table.set_index(table.columns[0])]


def tree_of(results: str) -> Tree:
    """Return the records of a folder, of "" the committed ones; `RecordError` if it is missing."""
    return existing(Tree(Path(results).resolve())) if results else committed()


def load(name: str, results: str = "", study: str = "") -> Result:
    """Return the answer of one study in a folder of results; without runs, that of the paper.

    It is `study` if its runs answer the question, else the first study whose runs do.
    """
    tree, question = tree_of(results), QUESTIONS[name]
    of_runs = question.needs != OF_NO_RUN
    for one in sorted(listed(tree), key=lambda other: other != study) if of_runs else []:
        tables = tables_of(tree, one, runs_table(tree, studies=[one]), windows_table(tree, [one]))
        points = question.points(tables)
        if question.answered_by(points, of_runs=True):
            return Result(name, points, f"Study {code(one)}, {counts(tables.runs)}.", tables)
    tables = tables_of(tree)
    points = question.points(tables)
    if not question.answered_by(points, of_runs=False):
        return Result(name, None)
    origin = "No run here answers this question: the values are the paper's." if of_runs else ""
    return Result(name, points, origin, tables)
