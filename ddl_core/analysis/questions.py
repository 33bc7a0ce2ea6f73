"""The questions that have a figure: how its points are chosen, and how they are drawn."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.analysis.figures import (
    accuracy,
    accuracy_figures,
    bullets,
    by_arm,
    kernel_shares,
    loader_bound,
    over_workers,
    points,
    time_budget,
)
from ddl_core.analysis.paper import Paper

Points = Callable[[pd.DataFrame, pd.DataFrame, Paper], pd.DataFrame]
Draw = Callable[[pd.DataFrame], Figure]


@dataclass(frozen=True)
class Question:
    """A figure in two steps: runs, arms and paper to points, points to figure."""

    points: Points
    draw: Draw


# The synthetic loader stands beside the others: it shows what is left without any data path.
_NATIVE = [("native", "turbo", "synthetic")]
_DALI = [("dali_cpu",), ("dali_gpu",)]
_ALL = [("native", "turbo", "dali_cpu", "dali_gpu", "synthetic")]

QUESTIONS = {
    "throughput_vs_workers": Question(
        lambda runs, arms, paper: points.throughput(arms, paper), over_workers.throughput_vs_workers
    ),
    "throughput_by_arm": Question(
        lambda runs, arms, paper: points.repeats(runs, arms), by_arm.throughput_by_arm
    ),
    "loader_bound": Question(
        lambda runs, arms, paper: loader_bound.loader_bound(runs), bullets.loader_bound
    ),
    "efficiency_native": Question(
        lambda runs, arms, paper: points.efficiency(arms, paper, _NATIVE, models=["resnet50"]),
        over_workers.efficiency_native,
    ),
    "efficiency_dali": Question(
        lambda runs, arms, paper: points.efficiency(arms, paper, _DALI, models=["resnet50"]),
        over_workers.efficiency_dali,
    ),
    "efficiency_by_model": Question(
        lambda runs, arms, paper: points.efficiency(
            arms, paper, [("dali_cpu",), ("native",)], strategies=["ddp"], compare="model"
        ),
        over_workers.efficiency_by_model,
    ),
    "efficiency_by_loader": Question(
        lambda runs, arms, paper: points.efficiency(arms, paper, _ALL, models=["resnet101"]),
        over_workers.efficiency_by_loader,
    ),
    "kernel_shares": Question(
        lambda runs, arms, paper: kernel_shares.kernel_shares(paper),
        kernel_shares.draw_kernel_shares,
    ),
    "time_budget": Question(
        lambda runs, arms, paper: time_budget.time_budget(runs), time_budget.draw_time_budget
    ),
    "schedules": Question(
        lambda runs, arms, paper: accuracy.schedules(paper), accuracy_figures.schedules
    ),
    "accuracy_vs_batch_size": Question(
        lambda runs, arms, paper: accuracy.accuracy_vs_batch_size(runs, paper),
        accuracy_figures.accuracy_vs_batch_size,
    ),
    "learning_curves": Question(
        lambda runs, arms, paper: accuracy.learning_curves(runs),
        accuracy_figures.learning_curves,
    ),
}
