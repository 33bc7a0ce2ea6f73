"""All questions by name: how points are chosen from the tables, and which figure shows them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure

from ddl_tools.analysis.configurations import CONFIGURATION
from ddl_tools.analysis.confirmation import beside
from ddl_tools.analysis.figures import (
    accuracy,
    advice,
    comparison,
    emulated,
    library_accuracy,
    loader_bound,
    memory,
    scaling,
    schedules,
    shares,
    time_to_accuracy,
)
from ddl_tools.analysis.paper import Paper
from ddl_tools.analysis.tables import PROFILE_COLUMNS, WINDOW_COLUMNS, empty_table
from ddl_tools.study import Study

OF_NO_RUN = "what the paper states"


@dataclass(frozen=True)
class Tables:
    """All that a figure's points are made of.

    `study` is None where its definition is not kept, `second` where it was not measured again.
    """

    runs: pd.DataFrame
    configurations: pd.DataFrame
    paper: Paper
    windows: pd.DataFrame = field(default_factory=lambda: empty_table(WINDOW_COLUMNS))
    profiles: pd.DataFrame = field(default_factory=lambda: empty_table(PROFILE_COLUMNS))
    study: Study | None = None
    second: "Tables | None" = None


@dataclass(frozen=True)
class Question:
    """A figure in two steps: tables to points, points to figure.

    `asks` is the question, `notebook` the one that explains the figure. `needs` says which runs it
    cannot do without, where the paper states nothing to show instead. Points that are not `enough`
    for a figure are shown as sentences and a table.
    """

    asks: str
    notebook: str
    chosen: Callable[[Tables], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Figure] | None  # None: always sentences and a table
    needs: str = "training runs"
    column: str = "value"  # column that half of the configurations of a study must have
    also: str = ""  # column that one of them must have
    over: str = ""  # the size that a curve is over: it has three at least
    enough: Callable[[pd.DataFrame], bool] = lambda points: True

    def figure(self, points: pd.DataFrame) -> Figure | None:
        """Return the figure of points that hold an answer; None where they are not enough."""
        return self.draw(points) if self.draw and self.enough(points) else None


def _several_starts(points: pd.DataFrame) -> bool:
    """Say whether any configuration has several starts: without, there is no interval to draw."""
    return bool(points["n"].max() > 1)


def _several_lines(points: pd.DataFrame) -> bool:
    """Say whether any panel compares curves: the answer has all that a single one shows."""
    return bool(points.groupby("panel")["line"].nunique().max() > 1)


def has_answer(points: pd.DataFrame, question: Question, of_runs: bool) -> bool:
    """Say whether a figure answers its question; in a study's folder (`of_runs`) of its runs."""
    if not of_runs:
        return bool(points.get(question.column, pd.Series(1, points.index)).notna().any())
    points = points[points["study"].notna()] if "study" in points else points.iloc[:0]
    known = points.filter(items=[question.column, "diverged_value"]).notna().any(axis=1)
    if not known.any() or (question.also and points[question.also].isna().all()):
        return False
    series = [name for name in ("panel", *CONFIGURATION, "label", "line") if name in points]
    if question.over:
        sizes = points[known].groupby(series, dropna=False)[question.over].nunique()
        return bool(sizes.max() >= LEAST_SIZES)
    rows = [name for name in (*series, "world_size") if name in points]
    answered = known.groupby([points[name] for name in rows], dropna=False).any()
    return bool(answered.mean() >= LEAST_SHARE)


def _compared(tables: Tables) -> pd.DataFrame:
    """Return the points of the comparison, beside those of a second measurement."""
    points = comparison.points(tables.runs, tables.windows, tables.study)
    if tables.second is None:
        return points
    again = comparison.points(tables.second.runs, tables.second.windows, tables.study)
    return beside(points, again)


LEAST_SIZES = 3  # of a curve that has a figure of its own
LEAST_SHARE = 0.5  # of the configurations of a figure that answer its question
_SIZES = "at three numbers of ranks"


QUESTIONS = {
    "comparison": Question(
        "Which configuration trains fastest?",
        "11_throughput",
        _compared,
        comparison.draw,
        enough=_several_starts,
    ),
    "throughput_vs_workers": Question(
        "How does throughput grow with the number of ranks?",
        "12_scaling",
        lambda tables: scaling.throughput_points(tables.configurations),
        scaling.draw_throughput,
        needs=f"a network and loader {_SIZES}",
        over="world_size",
    ),
    "throughput_vs_batch_size": Question(
        "How does throughput depend on the batch of a rank?",
        "11_throughput",
        lambda tables: scaling.batch_points(tables.configurations),
        scaling.draw_batches,
        needs="a network and loader at three batch sizes",
        over="local_batch_size",
    ),
    "memory_per_rank": Question(
        "How much memory does a rank need?",
        "20_memory",
        lambda tables: memory.memory_points(tables.runs),
        memory.draw_memory,
        needs="FSDP or ZeRO beside another strategy, and runs with their memory",
    ),
    "loader_bound": Question(
        "Is the data loader the bottleneck?",
        "13_loaders",
        lambda tables: loader_bound.points(tables.runs, tables.windows),
        loader_bound.draw,
        needs="a training, its loader alone, and the same on synthetic data",
        column="bound",
        enough=_several_starts,
    ),
    "efficiency": Question(
        "How efficient are more ranks?",
        "12_scaling",
        lambda tables: scaling.efficiency_points(tables.configurations, tables.paper),
        scaling.draw_efficiency,
        needs=f"a network and loader {_SIZES}",
        over="world_size",
    ),
    "efficiency_emulated": Question(
        "How efficient are more emulated nodes?",
        "12_scaling",
        lambda tables: emulated.emulated_points(tables.runs),
        emulated.draw_emulated,
        needs="emulated runs on one node and on several",
        enough=_several_lines,
    ),
    "kernel_shares": Question(
        "Which kernels take the time of a GPU?",
        "14_where_time_goes",
        lambda tables: shares.kernel_points(tables.paper),
        shares.draw_kernels,
        needs=OF_NO_RUN,
    ),
    "advice": Question(
        "Which configuration meets the limits?",
        "23_advise",
        lambda tables: advice.points(),
        advice.draw,
        needs=OF_NO_RUN,
        enough=advice.has_accuracy,
    ),
    "time_budget": Question(
        "Where does the time of an epoch go?",
        "14_where_time_goes",
        lambda tables: shares.epoch_points(tables.runs, tables.configurations),
        shares.draw_epochs,
        needs="runs with the parts of their time, at two numbers of ranks",
        also="loss",
        enough=_several_starts,
    ),
    "time_shares": Question(
        "Where does the time of a step go?",
        "14_where_time_goes",
        lambda tables: shares.profile_points(tables.profiles, tables.runs),
        shares.draw_profiles,
        needs="profiled runs",
        enough=_several_starts,
    ),
    "time_to_accuracy": Question(
        "How long does training to an accuracy take?",
        "21_related_papers",
        lambda tables: time_to_accuracy.time_points(tables.runs),
        time_to_accuracy.draw_times,
        needs=f"CIFAR-10 or Fashion-MNIST, evaluated {_SIZES}",
        over="world_size",
    ),
    "accuracy_by_library": Question(
        "Do all libraries reach the same accuracy?",
        "21_related_papers",
        lambda tables: library_accuracy.accuracy_points(tables.runs),
        None,
        needs="several libraries that evaluated",
    ),
    "schedules": Question(
        "Which learning rate does each schedule give?",
        "15_schedules",
        lambda tables: schedules.schedule_points(tables.paper),
        schedules.draw_schedules,
        needs=OF_NO_RUN,
    ),
    "accuracy_vs_batch_size": Question(
        "How much accuracy do large batches lose?",
        "16_accuracy_vs_batch_size",
        lambda tables: accuracy.batch_points(tables.runs, tables.paper),
        accuracy.draw_batches,
        needs="a study of schedules or optimisers",
    ),
}
