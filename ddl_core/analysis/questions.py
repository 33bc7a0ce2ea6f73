"""The questions that have a figure: how its points are chosen, and how they are drawn."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.analysis.figures import (
    accuracy,
    by_arm,
    kernel_shares,
    loader_bound,
    over_workers,
    schedules,
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
        lambda runs, arms, paper: over_workers.throughput_points(arms, paper),
        over_workers.draw_throughput,
    ),
    "throughput_by_arm": Question(lambda runs, arms, paper: by_arm.points(runs, arms), by_arm.draw),
    "loader_bound": Question(
        lambda runs, arms, paper: loader_bound.points(runs), loader_bound.draw
    ),
    "efficiency_native": Question(
        lambda runs, arms, paper: over_workers.efficiency_points(
            arms, paper, _NATIVE, models=["resnet50"]
        ),
        over_workers.draw_native,
    ),
    "efficiency_dali": Question(
        lambda runs, arms, paper: over_workers.efficiency_points(
            arms, paper, _DALI, models=["resnet50"]
        ),
        over_workers.draw_dali,
    ),
    "efficiency_by_model": Question(
        lambda runs, arms, paper: over_workers.efficiency_points(
            arms, paper, [("dali_cpu",), ("native",)], strategies=["ddp"], compare="model"
        ),
        over_workers.draw_by_model,
    ),
    "efficiency_by_loader": Question(
        lambda runs, arms, paper: over_workers.efficiency_points(
            arms, paper, _ALL, models=["resnet101"]
        ),
        over_workers.draw_by_loader,
    ),
    "kernel_shares": Question(
        lambda runs, arms, paper: kernel_shares.points(paper),
        kernel_shares.draw,
    ),
    "time_budget": Question(lambda runs, arms, paper: time_budget.points(runs), time_budget.draw),
    "schedules": Question(lambda runs, arms, paper: schedules.points(paper), schedules.draw),
    "accuracy_vs_batch_size": Question(
        lambda runs, arms, paper: accuracy.batch_size_points(runs, paper),
        accuracy.draw_batch_size,
    ),
    "learning_curves": Question(
        lambda runs, arms, paper: accuracy.curve_points(runs),
        accuracy.draw_curves,
    ),
}
