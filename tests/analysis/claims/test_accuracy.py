"""Accuracies: differences in points, paired by seed, within a margin of one."""

from collections.abc import Sequence
from typing import Any

import pytest

from ddl_core.analysis.claims import table
from ddl_core.analysis.claims.decide import CONTRADICTED, SUPPORTED, UNDECIDED
from ddl_core.analysis.claims.statements import EPOCHS, LOCAL_BATCH
from ddl_core.analysis.paper import read_paper
from ddl_core.analysis.tables import runs_table
from ddl_core.records.paths import Tree
from tests.analysis.conftest import MakeRun, epoch_row

PAPER = read_paper()
PAPERS = {
    "study": "whole",
    "dataset": "imagenet",
    "model": "resnet50",
    "epochs": EPOCHS,
    "image_size": 224,
    "local_batch_size": LOCAL_BATCH,
    "loader": "dali_cpu",
    "data_format": "tfrecord",
}
SMALL = {"study": "tiny", "dataset": "fashion_mnist", "loader": "memory", "model": "resnet8"}


def rows(curve: Sequence[float], epochs: int = 3, loss: float = 1.0) -> list:
    """Return what a run leaves: evaluations evenly over its epochs, the last at its end."""
    found = []
    for number, top1 in enumerate(curve):
        epoch = (number + 1) * epochs // len(curve) - 1
        found.append(epoch_row(epoch, loss=loss, top1=None, top5=None))
        found.append(epoch_row(epoch, "eval", top1=top1))
    return found


def learn(
    make_run: MakeRun, schedule: str, ends: Sequence[float], batch: int = 16, **fields: Any
) -> None:
    """Write one run per final accuracy of `ends`; with 16 images a worker unless told."""
    fields = SMALL | {"accumulation": batch // fields.get("local_batch_size", 16)} | fields
    for repeat, end in enumerate(ends):
        make_run(
            rows=rows([end], fields.get("epochs", 3)), schedule=schedule, repeat=repeat, **fields
        )


def judged(tree: Tree) -> Any:
    return table.judged(runs_table(tree.runs), PAPER).set_index("statement")


def test_wide_ranges_are_no_agreement(make_run: MakeRun, tree: Tree) -> None:
    learn(make_run, "step", [0.40, 0.60, 0.80])
    learn(make_run, "exponential", [0.75, 0.55, 0.95])
    here = judged(tree).loc["O16", "here"]
    assert "step - exponential: -15.0 [" in here
    assert here.endswith("points, cannot say")


def test_a_tenth_of_a_point_is_not_the_opposite(make_run: MakeRun, tree: Tree) -> None:
    learn(make_run, "step", [0.680, 0.6801, 0.6799])
    learn(make_run, "exponential", [0.681, 0.6812, 0.6808])
    here = judged(tree).loc["O16", "here"]
    assert here.endswith("step - exponential: -0.1 [-0.1, -0.1] points, equivalent")


def test_a_seed_is_a_pair(make_run: MakeRun, tree: Tree) -> None:
    """Seeds 20 points apart hide a difference of 3 points, unless they are compared one by one."""
    learn(make_run, "cosine", [0.50, 0.70, 0.605])
    learn(make_run, "step", [0.47, 0.671, 0.574])
    assert "cosine - step: +3.0 [+2.8, +3.2] points, greater" in judged(tree).loc["O24", "here"]


def test_other_repeats_are_no_pairs(make_run: MakeRun, tree: Tree) -> None:
    learn(make_run, "cosine", [0.50, 0.70, 0.605])
    learn(make_run, "step", [0.47, 0.671, 0.574, 0.60])
    assert judged(tree).loc["O24", "here"].endswith("points, cannot say")


def test_diverged_runs_are_lost_and_counted(make_run: MakeRun, tree: Tree) -> None:
    learn(make_run, "step", [0.5, 0.6])
    learn(make_run, "cosine", [0.5, 0.6])
    make_run(
        rows=rows([0.1], loss=float("nan")), schedule="cosine", repeat=2, accumulation=1, **SMALL
    )
    assert "cosine - step (1 lost): +0.0 [" in judged(tree).loc["O24", "here"]


def test_small_batches_are_looked_for_at_the_smallest(make_run: MakeRun, tree: Tree) -> None:
    for batch, step, cosine in ((16, 0.70, 0.75), (64, 0.60, 0.60), (256, 0.50, 0.40)):
        learn(make_run, "step", [step - 0.001, step, step + 0.001], batch)
        learn(make_run, "cosine", [cosine - 0.001, cosine, cosine + 0.001], batch)
    seen = judged(tree)["here"]
    assert seen["O24"].startswith("tiny, Fashion-MNIST, ResNet8, batch 16: cosine - step: +5.0 ")
    assert seen["O20"].startswith("tiny, Fashion-MNIST, ResNet8, batch 256: step - cosine: +10.0 ")
    assert "step: batch 16 - 256: +20.0 [" in seen["O21"]


@pytest.mark.parametrize(
    ("cosine", "verdict"), [(0.75, CONTRADICTED), (0.60, SUPPORTED), (0.695, UNDECIDED)]
)
def test_the_papers_own_task_is_judged(
    make_run: MakeRun, tree: Tree, cosine: float, verdict: str
) -> None:
    """O19: exponential passes cosine at a batch of 32,768."""
    learn(make_run, "exponential", [0.690, 0.700, 0.695], 32_768, **PAPERS)
    learn(make_run, "cosine", [cosine + 0.002, cosine, cosine - 0.001], 32_768, **PAPERS)
    assert judged(tree).loc["O19", "verdict"] == verdict


def test_another_learning_rate_judges_nothing(make_run: MakeRun, tree: Tree) -> None:
    other = PAPERS | {"base_lr": 0.1}
    learn(make_run, "exponential", [0.690, 0.700, 0.695], 32_768, **other)
    learn(make_run, "cosine", [0.602, 0.600, 0.599], 32_768, **other)
    assert judged(tree).loc["O19", "verdict"] == UNDECIDED


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ([0.520, 0.521, 0.519], SUPPORTED),
        ([0.560, 0.561, 0.559], CONTRADICTED),
        ([0.40, 0.52, 0.64], UNDECIDED),
    ],
)
def test_stated_accuracies(make_run: MakeRun, tree: Tree, ends: list[float], verdict: str) -> None:
    """A03: 52 % with exponential at a batch of 65,536."""
    learn(make_run, "exponential", ends, 65_536, **PAPERS)
    learn(make_run, "step", [0.1, 0.1, 0.1], 65_536, **PAPERS)  # so that it is a study of accuracy
    assert judged(tree).loc["A03", "verdict"] == verdict


def test_curves_are_compared_early_and_late(make_run: MakeRun, tree: Tree) -> None:
    """O22 is about the first 20 of 90 epochs, O23 about the other 70."""
    curves = {
        "step": [0.10, 0.20, 0.30, 0.30, 0.30, 0.30, 0.30, 0.30, 0.41],
        "cosine": [0.10, 0.20, 0.20, 0.20, 0.20, 0.20, 0.20, 0.20, 0.31],
        "exponential": [0.10, 0.20, 0.50, 0.50, 0.50, 0.50, 0.50, 0.50, 0.52],
    }
    fields = PAPERS | {"accumulation": 65_536 // LOCAL_BATCH}
    for schedule, curve in curves.items():
        for repeat, shift in enumerate((0.0, 0.001, -0.001)):
            values = [value + shift * (repeat + 1) for value in curve]
            make_run(rows=rows(values, EPOCHS), schedule=schedule, repeat=repeat, **fields)
    verdicts = judged(tree)["verdict"]
    assert verdicts["O22"] == SUPPORTED
    assert verdicts["O23"] == SUPPORTED
