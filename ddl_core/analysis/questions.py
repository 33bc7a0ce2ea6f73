"""The questions that have a figure: how its points are chosen, and how they are drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.analysis.figures import (
    accuracy_by_library,
    accuracy_vs_batch_size,
    advice,
    by_arm,
    comparison,
    efficiency_emulated,
    kernel_shares,
    learning_curves,
    loader_bound,
    memory_per_rank,
    over_workers,
    ratios,
    scaling_bands,
    schedules,
    throughput_vs_batch_size,
    time_budget,
    time_shares,
    time_to_accuracy,
)
from ddl_core.analysis.paper import Paper
from ddl_core.analysis.seed_papers import SeedPapers, read_seeds
from ddl_core.analysis.tables import empty_profiles, empty_windows
from ddl_core.spec.study import Study

Draw = Callable[[pd.DataFrame], Figure]

OF_NO_RUN = "what the paper states"


@dataclass(frozen=True)
class Tables:
    """All that a figure's points are made of.

    `study` is what was asked, with its question and its axes; None where nobody knows, and where
    several studies are drawn together.
    """

    runs: pd.DataFrame
    arms: pd.DataFrame
    paper: Paper
    windows: pd.DataFrame = field(default_factory=empty_windows)
    profiles: pd.DataFrame = field(default_factory=empty_profiles)
    study: Study | None = None
    seeds: SeedPapers = field(default_factory=read_seeds)


@dataclass(frozen=True)
class Question:
    """A figure in two steps: tables to points, points to figure.

    `needs` says which runs it cannot do without, where the paper states nothing to show instead.
    Without any `answer` (a column of its points) it has nothing to show.
    """

    chosen: Callable[[Tables], pd.DataFrame]
    draw: Draw
    needs: str = "training runs"
    answer: str = "value"

    def points(
        self,
        runs: pd.DataFrame,
        arms: pd.DataFrame,
        paper: Paper,
        windows: pd.DataFrame | None = None,
    ) -> pd.DataFrame:
        """Return the figure's points. Without `windows`, no arms took turns."""
        given = empty_windows() if windows is None else windows
        return self.chosen(Tables(runs, arms, paper, given))


_NATIVE = [("native", "turbo")]
_CPU, _GPU = ("dali_cpu", "dali_reader_cpu"), ("dali_gpu", "dali_reader_gpu")
_DALI = [_CPU, _GPU]
# Where measured at two sizes, the synthetic loader stands beside the others: it shows what is left
# without any data path.
_ALL = [("native", "turbo", *_CPU, *_GPU, "synthetic")]
_SIZES = "at two numbers of workers"
_LEARNING = "a study of schedules or optimisers"

QUESTIONS = {
    "ratios": Question(
        lambda tables: ratios.points(tables.runs, tables.windows),
        ratios.draw,
        needs="a study whose arms take turns",
    ),
    "comparison": Question(
        lambda tables: comparison.points(
            tables.runs, tables.windows, tables.study.question if tables.study else ""
        ),
        comparison.draw,
        needs="a study that trained two arms",
    ),
    "throughput_vs_workers": Question(
        lambda tables: over_workers.throughput_points(tables.arms, tables.paper),
        over_workers.draw_throughput,
        needs=f"a network and loader {_SIZES}",
    ),
    "speedup_vs_workers": Question(
        lambda tables: over_workers.speedup_points(tables.arms, tables.seeds),
        over_workers.draw_speedup,
        needs=f"several libraries, one of them {_SIZES}",
    ),
    "throughput_vs_batch_size": Question(
        lambda tables: throughput_vs_batch_size.points(tables.arms),
        throughput_vs_batch_size.draw,
        needs="a network and loader at two batch sizes",
    ),
    "throughput_by_arm": Question(
        lambda tables: by_arm.points(tables.runs, tables.arms, tables.windows), by_arm.draw
    ),
    "memory_per_rank": Question(
        lambda tables: memory_per_rank.points(tables.runs),
        memory_per_rank.draw,
        needs="two strategies whose runs tell their memory",
    ),
    "loader_bound": Question(
        lambda tables: loader_bound.points(tables.runs, tables.windows),
        loader_bound.draw,
        needs="a training, its loader alone, and the same on synthetic data",
        answer="bound",
    ),
    "efficiency_native": Question(
        lambda tables: over_workers.efficiency_points(
            tables.arms, tables.paper, _NATIVE, models=["resnet50"]
        ),
        over_workers.draw_native,
        needs=f"ResNet50 with the native loader {_SIZES}",
    ),
    "efficiency_dali": Question(
        lambda tables: over_workers.efficiency_points(
            tables.arms, tables.paper, _DALI, models=["resnet50"]
        ),
        over_workers.draw_dali,
        needs=f"ResNet50 with DALI {_SIZES}",
    ),
    "efficiency_by_model": Question(
        lambda tables: over_workers.efficiency_points(
            tables.arms,
            tables.paper,
            [_CPU, ("native",)],
            strategies=["ddp"],
            compare="model",
        ),
        over_workers.draw_by_model,
        needs=f"PyTorch-DDP with two networks {_SIZES}",
    ),
    "efficiency_by_loader": Question(
        lambda tables: over_workers.efficiency_points(
            tables.arms, tables.paper, _ALL, models=["resnet101"]
        ),
        over_workers.draw_by_loader,
        needs=f"ResNet101 {_SIZES}",
    ),
    "efficiency_emulated": Question(
        lambda tables: efficiency_emulated.points(tables.runs),
        efficiency_emulated.draw,
        needs="emulated runs on one node and on several",
    ),
    "kernel_shares": Question(
        lambda tables: kernel_shares.points(tables.paper),
        kernel_shares.draw,
        needs=OF_NO_RUN,
    ),
    "scaling_bands": Question(
        lambda tables: scaling_bands.points(), scaling_bands.draw, needs=OF_NO_RUN
    ),
    "advice": Question(lambda tables: advice.points(), advice.draw, needs=OF_NO_RUN),
    "time_budget": Question(
        lambda tables: time_budget.points(tables.runs, tables.arms),
        time_budget.draw,
        needs="runs that tell what their time was spent on",
    ),
    "time_shares": Question(
        lambda tables: time_shares.points(tables.profiles, tables.runs),
        time_shares.draw,
        needs="profiled runs",
    ),
    "time_to_accuracy": Question(
        lambda tables: time_to_accuracy.points(tables.runs, tables.seeds),
        time_to_accuracy.draw,
        needs=f"CIFAR-10 or Fashion-MNIST, evaluated {_SIZES}",
    ),
    "accuracy_by_library": Question(
        lambda tables: accuracy_by_library.points(tables.runs),
        accuracy_by_library.draw,
        needs="several libraries that evaluated",
    ),
    "schedules": Question(
        lambda tables: schedules.points(tables.paper), schedules.draw, needs=OF_NO_RUN
    ),
    "accuracy_vs_batch_size": Question(
        lambda tables: accuracy_vs_batch_size.points(tables.runs, tables.paper),
        accuracy_vs_batch_size.draw,
        needs=_LEARNING,
    ),
    "learning_curves": Question(
        lambda tables: learning_curves.points(tables.runs),
        learning_curves.draw,
        needs=_LEARNING,
    ),
}
