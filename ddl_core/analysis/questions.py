"""The questions that have a figure: how its points are chosen, and how they are drawn."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.analysis import dots, figures, points
from ddl_core.analysis.paper import Paper

Points = Callable[[pd.DataFrame, Paper], pd.DataFrame]
Draw = Callable[[pd.DataFrame], Figure]


@dataclass(frozen=True)
class Question:
    """A figure in two steps; what the first returns is saved beside the picture."""

    points: Points
    draw: Draw


# The synthetic loader stands beside the others: it shows what is left without any data path.
_NATIVE = [("native", "synthetic")]
_DALI = [("dali_cpu",), ("dali_gpu",)]
_ALL = [("native", "dali_cpu", "dali_gpu", "synthetic")]

QUESTIONS = {
    "throughput_vs_workers": Question(points.throughput, figures.throughput_vs_workers),
    "throughput_by_arm": Question(lambda runs, paper: points.repeats(runs), dots.throughput_by_arm),
    "efficiency_native": Question(
        lambda runs, paper: points.efficiency(runs, paper, _NATIVE, models=["resnet50"]),
        figures.efficiency_native,
    ),
    "efficiency_dali": Question(
        lambda runs, paper: points.efficiency(runs, paper, _DALI, models=["resnet50"]),
        figures.efficiency_dali,
    ),
    "efficiency_by_model": Question(
        lambda runs, paper: points.efficiency(
            runs, paper, [("dali_cpu",), ("native",)], strategies=["ddp"]
        ),
        figures.efficiency_by_model,
    ),
    "efficiency_by_loader": Question(
        lambda runs, paper: points.efficiency(runs, paper, _ALL, models=["resnet101"]),
        figures.efficiency_by_loader,
    ),
}
