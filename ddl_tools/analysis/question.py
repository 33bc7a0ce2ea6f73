"""A question with its answer: points from the tables, a figure of them, sentences and a table."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddl_tools.analysis.configurations import CONFIGURATION
from ddl_tools.analysis.paper import Paper
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.rows import cell_text
from ddl_tools.analysis.tables import PROFILE_COLUMNS, WINDOW_COLUMNS, empty_table
from ddl_tools.study import Study

OF_NO_RUN = "what the paper states"
MOST_ROWS, MOST_SENTENCES = 10, 4
LEAST_SIZES = 3  # of a curve that has a figure of its own
LEAST_SHARE = 0.5  # of the configurations of a figure that answer its question

# What columns are called in tables; the others have their own names.
_HEADS = {
    "label": "configuration",
    "line": "configuration",
    "n": "runs",
    "ratio": "relative to the baseline",
    "again": "measured again",
    "world_size": "ranks",
    "local_batch_size": "batch of a rank",
    "global_batch_size": "global batch (images)",
    "emu_link_mbit": "link (Mbit/s)",
    "emu_step_ms": "step (ms)",
    "represents_gbit": "stands for (Gbit/s)",
    "calculated": "E calculated",
    "state": "share by arithmetic (GiB)",
    "throughput": "throughput (images/s)",
    "loading": "loader alone (images/s)",
    "training": "synthetic data (images/s)",
    "hours": "time (h), [range]",
    "node_hours": "cost (node-hours), [range]",
    "accuracy": "top-1 accuracy (%), [range]",
    "share": "share of the bound",
    "allreduce": "all-reduce (%)",
    "io": '"I/O" (%)',
    "cudnn": "cuDNN (%)",
    "rest": "other (%)",
    **{name: f"{name} (%)" for name in ("data", "compute", "transfer", "waiting", "other", "idle")},
    **{name: f"rate, {name}" for name in ("step", "cosine", "exponential")},
}


@dataclass(frozen=True)
class Tables:
    """All that a figure's points are made of.

    `study` is None where its definition is not kept, `second` where it was not measured again.
    `emulated` are the emulated runs of all studies, where the paper's numbers stand alone.
    """

    runs: pd.DataFrame
    configurations: pd.DataFrame
    paper: Paper
    windows: pd.DataFrame = field(default_factory=lambda: empty_table(WINDOW_COLUMNS))
    profiles: pd.DataFrame = field(default_factory=lambda: empty_table(PROFILE_COLUMNS))
    study: Study | None = None
    second: "Tables | None" = None
    emulated: pd.DataFrame | None = None


class Question:
    """A question that runs, or the paper, answer.

    A subclass says what it asks, and how tables become points and points a figure. Registered by
    `question`, it has a place in the pages of results and in notebooks.
    """

    asks: str
    notebook: str
    """The notebook that explains the figure."""
    needs = "training runs"
    """The runs that it cannot do without, where the paper states nothing to show instead."""
    column = "value"
    """The column that half of the configurations of a study must have."""
    also = ""
    """A column that one of them must have."""
    over = ""
    """The size that a curve is over: it has `LEAST_SIZES` at least."""
    columns = ""
    """The columns of the table, separated by spaces; if empty, all of `rows`."""
    value = ""
    """The heading of the column of this name."""
    text = ""
    """A Jinja template of `facts`: sentences, each after ``- ``; the first one is the title."""

    def points(self, tables: Tables) -> pd.DataFrame:
        """Return what the figure shows: a row for each value."""
        raise NotImplementedError

    def draw(self, points: pd.DataFrame) -> Figure:
        """Return the figure of points, which may be none."""
        raise NotImplementedError

    def enough(self, points: pd.DataFrame) -> bool:
        """Say whether points are enough for a figure; if not, a table and sentences show them."""
        return True

    def instead(self, points: pd.DataFrame) -> str:
        """Return the question whose figure shows the same values, and more; empty if there is none.

        Where that is drawn, this one has a table alone.
        """
        return ""

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the table, the best first."""
        return points

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        """Return what the sentences are about: by default the first two rows and the last."""
        rows = records(usable(self.rows(points)))
        return {"rows": [*rows[:2], *rows[2:][-1:]]}

    def sentences(self, points: pd.DataFrame) -> list[str]:
        """Return at most four sentences with numbers; the first one is the title of the figure."""
        _, *items = re.split("^- ", captions.say(self.text, **self.facts(points)), flags=re.M)
        lines = [re.sub(r" ([.,;:)])", r"\1", " ".join(one.split())) for one in items]
        return [line[:1].upper() + line[1:] for line in lines[:MOST_SENTENCES]]

    def title(self, points: pd.DataFrame) -> str:
        """Return the first sentence."""
        return self.sentences(points)[0].removesuffix(".")

    def table(self, points: pd.DataFrame) -> pd.DataFrame:
        """Return at most ten rows as texts, numbers with their intervals."""
        rows = self.rows(points).head(MOST_ROWS).to_dict("records")
        heads = _HEADS | {"value": self.value}
        texts = {
            heads.get(name, name): [cell_text(row, name) for row in rows]
            for name in self.columns.split() or map(str, rows[0])
        }
        table = pd.DataFrame(texts, dtype=str)
        return table.loc[:, (table != "").any()]

    def figure(self, points: pd.DataFrame, tables: Tables | None = None) -> Figure | None:
        """Return the figure of points that hold an answer; None where they are not enough.

        Also None where the figure of `instead` shows the `tables` of these points.
        """
        if not self.enough(points):
            return None
        other = REGISTERED.get(self.instead(points)) if tables else None
        return None if other and tables and other._drawn(tables) else self.draw(points)

    def _drawn(self, tables: Tables) -> bool:
        points = self.points(tables)
        return self.answered_by(points, of_runs=not tables.runs.empty) and self.enough(points)

    def answered_by(self, points: pd.DataFrame, of_runs: bool) -> bool:
        """Say whether points hold an answer; in a study's folder (`of_runs`) of its runs."""
        if not of_runs:
            return bool(points.get(self.column, pd.Series(1, points.index)).notna().any())
        points = points[points["study"].notna()] if "study" in points else points.iloc[:0]
        known = points.filter(items=[self.column, "diverged_value"]).notna().any(axis=1)
        if not known.any() or (self.also and points[self.also].isna().all()):
            return False
        series = [name for name in ("panel", *CONFIGURATION, "label", "line") if name in points]
        if self.over:
            sizes = points[known].groupby(series, dropna=False)[self.over].nunique()
            return bool(sizes.max() >= LEAST_SIZES)
        rows = [name for name in (*series, "world_size") if name in points]
        answered = known.groupby([points[name] for name in rows], dropna=False).any()
        return bool(answered.mean() >= LEAST_SHARE)


REGISTERED: dict[str, Question] = {}


def question(name: str) -> Callable[[type[Question]], type[Question]]:
    """Register a question by the name of its files, e.g. ``"comparison"``."""

    def register(one: type[Question]) -> type[Question]:
        REGISTERED[name] = one()
        return one

    return register


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table for a template, in which a missing text is None."""
    texts = table.select_dtypes(exclude="floating")
    known = texts.astype(object).where(texts.notna(), None)
    return table.assign(**{str(name): known[name] for name in known}).to_dict("records")


def several_starts(points: pd.DataFrame) -> bool:
    """Say whether any configuration has several starts: without, there is no interval to draw."""
    return bool(points["n"].max() > 1)


def with_line(points: pd.DataFrame) -> pd.DataFrame:
    """Return points with what a configuration is called, without its number of ranks: `line`."""
    table = style.with_framework_strategy(points)
    strategies = table["framework_strategy"].map(style.strategy_name, na_action="ignore")
    names = strategies.fillna(style.UNNAMED) + ", " + table["loader"].map(style.loader_name)
    if table["model"].nunique() > 1:
        models = table["model"].map(style.model_name, na_action="ignore")
        names += (", " + models).fillna("")
    return table.assign(line=names)


def in_percent(points: pd.DataFrame) -> pd.DataFrame:
    """Return points with value, low and high in percent."""
    shares = points.columns.intersection(["value", "low", "high"])
    return points.assign(**{name: 100 * points[name] for name in shares})


def largest(points: pd.DataFrame, size: str = "world_size") -> pd.DataFrame:
    """Return the rows with a value at the largest size, the largest value first."""
    known = points[points["value"].notna()]
    return known[known[size] == known[size].max()].sort_values("value", ascending=False)


def usable(points: pd.DataFrame) -> pd.DataFrame:
    """Return configurations that one can use: none on synthetic data, unless all are."""
    reads = points[points["loader"] != "synthetic"] if "loader" in points else points
    return points if reads.empty else reads
