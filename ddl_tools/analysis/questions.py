"""All figures by name: how their points are chosen from the tables, and how they are drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddl_tools.analysis.configurations import CONFIGURATION
from ddl_tools.analysis.figures import (
    accuracy,
    advice,
    comparison,
    loader_bound,
    scaling,
    scaling_bands,
    shares,
)
from ddl_tools.analysis.paper import Paper
from ddl_tools.analysis.tables import empty_profiles, empty_windows
from ddl_tools.study import Study

Draw = Callable[[pd.DataFrame], Figure]

OF_NO_RUN = "what the paper states"


@dataclass(frozen=True)
class Tables:
    """All that a figure's points are made of; `study` is None where nobody knows what was asked."""

    runs: pd.DataFrame
    configurations: pd.DataFrame
    paper: Paper
    windows: pd.DataFrame = field(default_factory=empty_windows)
    profiles: pd.DataFrame = field(default_factory=empty_profiles)
    study: Study | None = None


@dataclass(frozen=True)
class Question:
    """A figure in two steps: tables to points, points to figure.

    `needs` says which runs it cannot do without, where the paper states nothing to show instead.
    Without any `answer` (a column of its points) it has nothing to show, nor has one of curves
    over ranks (`is_scaling`) without three sizes.
    """

    chosen: Callable[[Tables], pd.DataFrame]
    draw: Draw
    needs: str = "training runs"
    answer: str = "value"
    is_scaling: bool = False

    def points(
        self,
        runs: pd.DataFrame,
        configurations: pd.DataFrame,
        paper: Paper,
        windows: pd.DataFrame | None = None,
    ) -> pd.DataFrame:
        """Return the figure's points. Without `windows`, nothing was interleaved."""
        given = empty_windows() if windows is None else windows
        return self.chosen(Tables(runs, configurations, paper, given))


def has_answer(points: pd.DataFrame, question: Question, of_runs: bool) -> bool:
    """Say whether a figure has anything to show; in a study's folder (`of_runs`) of its runs."""
    if of_runs:
        points = points[points["study"].notna()] if "study" in points else points.iloc[:0]
    if question.answer not in points:
        return not points.empty
    known = points.filter(items=[question.answer, "diverged_value"]).notna().any(axis=1)
    if of_runs and question.is_scaling and known.any():
        sizes = (
            points[known].groupby(["panel", *CONFIGURATION], dropna=False)["world_size"].nunique()
        )
        return bool(sizes.max() >= LEAST_SIZES)
    return bool(known.any())


LEAST_SIZES = 3  # of a curve over ranks that has a figure of its own
_NATIVE = [("native", "turbo")]
_CPU, _GPU = ("dali_cpu", "dali_reader_cpu"), ("dali_gpu", "dali_reader_gpu")
# The synthetic loader stands beside the others: it shows what is left without any data path.
_ALL = [("native", "turbo", *_CPU, *_GPU, "synthetic")]
_SIZES = "at three numbers of ranks"
_LEARNING = "a study of schedules or optimisers"


def _efficiency(
    what: str, loaders: Any, needs: str, by: str = "framework_strategy", **choice: Any
) -> Question:
    """Return a figure of efficiency over ranks, ours beside the paper's."""
    return Question(
        lambda tables: scaling.efficiency_points(
            tables.configurations, tables.paper, loaders, **choice
        ),
        lambda points: scaling.draw_efficiency(points, what, by),
        needs=f"{needs} {_SIZES}",
        is_scaling=True,
    )


QUESTIONS = {
    "comparison": Question(
        lambda tables: comparison.points(
            tables.runs, tables.windows, tables.study.question if tables.study else ""
        ),
        comparison.draw,
    ),
    "throughput_vs_workers": Question(
        lambda tables: scaling.throughput_points(tables.configurations, tables.paper),
        scaling.draw_throughput,
        needs=f"a network and loader {_SIZES}",
        is_scaling=True,
    ),
    "speedup_vs_workers": Question(
        lambda tables: scaling.speedup_points(tables.configurations, tables.paper),
        scaling.draw_speedup,
        needs=f"several libraries, one of them {_SIZES}",
        is_scaling=True,
    ),
    "throughput_vs_batch_size": Question(
        lambda tables: scaling.batch_points(tables.configurations),
        scaling.draw_batches,
        needs="a network and loader at two batch sizes",
    ),
    "memory_per_rank": Question(
        lambda tables: comparison.memory_points(tables.runs),
        comparison.draw_memory,
        needs="two strategies whose runs tell their memory",
    ),
    "loader_bound": Question(
        lambda tables: loader_bound.points(tables.runs, tables.windows),
        loader_bound.draw,
        needs="a training, its loader alone, and the same on synthetic data",
        answer="bound",
    ),
    "efficiency_native": _efficiency(
        "ResNet50, native loader", _NATIVE, "ResNet50 with the native loader", models=["resnet50"]
    ),
    "efficiency_dali": _efficiency(
        "ResNet50, DALI", [_CPU, _GPU], "ResNet50 with DALI", models=["resnet50"]
    ),
    "efficiency_by_model": _efficiency(
        "PyTorch-DDP",
        [_CPU, ("native",)],
        "PyTorch-DDP with two networks",
        by="model",
        strategies=["ddp"],
        compare="model",
    ),
    "efficiency_by_loader": _efficiency("ResNet101", _ALL, "ResNet101", models=["resnet101"]),
    "efficiency_emulated": Question(
        lambda tables: scaling.emulated_points(tables.runs),
        scaling.draw_emulated,
        needs="emulated runs on one node and on several",
    ),
    "kernel_shares": Question(
        lambda tables: shares.kernel_points(tables.paper),
        shares.draw_kernels,
        needs=OF_NO_RUN,
    ),
    "scaling_bands": Question(
        lambda tables: scaling_bands.points(), scaling_bands.draw, needs=OF_NO_RUN
    ),
    "advice": Question(lambda tables: advice.points(), advice.draw, needs=OF_NO_RUN),
    "time_budget": Question(
        lambda tables: shares.epoch_points(tables.runs, tables.configurations),
        shares.draw_epochs,
        needs="runs that tell what their time was spent on",
    ),
    "time_shares": Question(
        lambda tables: shares.profile_points(tables.profiles, tables.runs),
        shares.draw_profiles,
        needs="profiled runs",
    ),
    "time_to_accuracy": Question(
        lambda tables: accuracy.time_points(tables.runs, tables.paper),
        accuracy.draw_times,
        needs=f"CIFAR-10 or Fashion-MNIST, evaluated {_SIZES}",
        is_scaling=True,
    ),
    "accuracy_by_library": Question(
        lambda tables: comparison.accuracy_points(tables.runs),
        comparison.draw_accuracy,
        needs="several libraries that evaluated",
    ),
    "schedules": Question(
        lambda tables: accuracy.schedule_points(tables.paper),
        accuracy.draw_schedules,
        needs=OF_NO_RUN,
    ),
    "accuracy_vs_batch_size": Question(
        lambda tables: accuracy.batch_points(tables.runs, tables.paper),
        accuracy.draw_batches,
        needs=_LEARNING,
    ),
    "learning_curves": Question(
        lambda tables: accuracy.curve_points(tables.runs),
        accuracy.draw_curves,
        needs=_LEARNING,
    ),
}
