"""Titles that state a difference say whether its interval decides it."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ddl_tools.analysis.figures import (
    QUESTIONS,
    accuracy,
    accuracy_differences,
    accuracy_runs,
    memory,
)
from ddl_tools.analysis.plot.canvas import title_of
from ddl_tools.analysis.tables import runs_table
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import MakeRun, curve, epoch_row
from tests.analysis.drawn import ACCURACY, PAPER, points_of

SURE, WILD = (1.0, 1.01, 0.99), (1.0, 2.0, 0.5)


def title(name: str, tree: Tree) -> str:
    return title_of(QUESTIONS[name].draw(points_of(name, runs_table(tree))))


def made(make_run: MakeRun, wall_s: float, factors: Sequence[float], **fields: Any) -> None:
    for repeat, factor in enumerate(factors):
        make_run(wall_s * factor, repeat=repeat, **fields)


@pytest.mark.parametrize(
    ("factors", "end"),
    [(SURE, ""), (WILD, ": inconclusive"), (SURE[:1], ": one start")],
)
def test_ratio_of_one_configuration(
    tree: Tree, make_run: MakeRun, factors: Sequence[float], end: str
) -> None:
    made(make_run, 20.0, factors, strategy="ddp")
    made(make_run, 10.0, factors, strategy="horovod")
    assert title("comparison", tree).endswith(f"times as fast as PyTorch-DDP{end}")


def test_the_fastest_is_one_that_is_decided(tree: Tree, make_run: MakeRun) -> None:
    made(make_run, 20.0, SURE, strategy="ddp")
    made(make_run, 10.0, SURE, strategy="horovod")
    made(make_run, 4.0, SURE[:1], strategy="deepspeed", deepspeed_zero_stage=1)
    made(make_run, 6.0, WILD, strategy="deepspeed", deepspeed_zero_stage=2)
    assert title("comparison", tree).startswith("Horovod trains 2.00 [")


def test_where_none_is_faster_the_baseline_is_named(tree: Tree, make_run: MakeRun) -> None:
    made(make_run, 20.0, SURE, strategy="ddp")
    made(make_run, 40.0, SURE, strategy="horovod")
    assert title("comparison", tree).startswith("PyTorch-DDP trains fastest; Horovod reaches 0.50 ")


def test_synthetic_data_is_a_control_and_never_the_fastest(tree: Tree, make_run: MakeRun) -> None:
    made(make_run, 20.0, SURE, loader="native")
    made(make_run, 5.0, SURE, loader="synthetic")
    made(make_run, 10.0, SURE, loader="turbo")
    assert title("comparison", tree).startswith("Turbo trains 2.00 [")
    points = points_of("comparison", runs_table(tree))
    assert not any("synthetic" in one for one in QUESTIONS["comparison"].sentences(points))
    table = QUESTIONS["comparison"].table(points).set_index("configuration")
    assert table.loc["synthetic", "decision"] == "control"


@pytest.mark.parametrize(
    ("factors", "end"), [(SURE, "PyTorch-DDP"), (WILD, "inconclusive"), (SURE[:1], "one start")]
)
def test_memory(tree: Tree, make_run: MakeRun, factors: Sequence[float], end: str) -> None:
    for (strategy, gib), (repeat, factor) in itertools.product(
        {"ddp": 2.0, "fsdp": 1.0}.items(), enumerate(factors)
    ):
        taken = round(gib * factor * memory.GIB)
        rows = [epoch_row(epoch, max_memory_bytes=taken) for epoch in range(2)]
        make_run(rows=rows, strategy=strategy, gpus_per_node=2, repeat=repeat)
    assert title("memory_per_rank", tree).startswith("PyTorch-FSDP needs ")
    assert title("memory_per_rank", tree).endswith(end)


@pytest.mark.parametrize(
    ("factors", "end"), [(SURE, "at most"), (WILD, ": inconclusive"), (SURE[:1], ": one start")]
)
@pytest.mark.parametrize(
    ("name", "size"),
    [("throughput_vs_workers", "gpus_per_node"), ("throughput_vs_batch_size", "local_batch_size")],
)
def test_growth(
    tree: Tree, make_run: MakeRun, name: str, size: str, factors: Sequence[float], end: str
) -> None:
    for number in (1, 2, 4):
        made(make_run, 20.0 / number, factors, strategy="ddp", **{size: number})
    assert "throughput grows 4.00-fold at most" in title(name, tree)
    assert title(name, tree).endswith(end)


@pytest.mark.parametrize(
    ("wobble", "precise_word", "loss_word"),
    [((0.0, 0.01, -0.01), "", ""), ((0.0, 0.2, -0.2), " (inconclusive)", " (inconclusive)")],
)
def test_accuracies(
    tree: Tree, make_run: MakeRun, wobble: Sequence[float], precise_word: str, loss_word: str
) -> None:
    """The second evaluation wobbles in the difference of two schedules, and over batches."""
    for (repeat, more), schedule, accumulation in itertools.product(
        enumerate(wobble), ("cosine", "exponential"), (1, 20)
    ):
        ahead = schedule == "exponential"
        rows = curve([0.1, 0.5 + 0.1 * ahead - (0.2 - more) * (accumulation == 20)])
        rows[-1].precise_bn_top1 = 0.5 + (0.1 + more) * ahead
        fields = ACCURACY | {"schedule": schedule, "repeat": repeat, "precise_bn": True}
        make_run(rows=rows, accumulation=accumulation, **fields)
    points = accuracy.batch_points(runs_table(tree), PAPER)
    assert title_of(accuracy.draw_batches(points)) == (
        "At batch 320, exponential minus cosine is +10 points with running statistics and "
        f"+10 points{precise_word} with statistics estimated anew"
    )
    single = points[points["evaluation"] == accuracy_runs.RUNNING]
    lost = f"loses 20.0 points of accuracy{loss_word}"
    assert f"SGD, cosine {lost}" in title_of(accuracy.draw_batches(single))


def test_a_difference_within_one_point_is_equivalent(tree: Tree, make_run: MakeRun) -> None:
    """Its interval excludes 0, as [1.01, 1.03] excludes 1."""
    for schedule, ahead in (("cosine", 0.0), ("exponential", 0.005)):
        for repeat in range(3):
            rows = curve([0.1, 0.5 + ahead + 0.001 * repeat * bool(ahead)])
            make_run(rows=rows, accumulation=20, **ACCURACY, schedule=schedule, repeat=repeat)
    points = accuracy.batch_points(runs_table(tree), PAPER)
    (difference,) = accuracy_differences.differences(points).to_dict("records")
    assert difference["difference_low"] > 0
    assert difference["decision"] == "equivalent"
    answer = accuracy_differences.answers(points)[-1]
    assert "none with running statistics" in answer
    assert "equivalent" in answer
    assert "inconclusive" not in answer


def test_a_time_to_accuracy_is_no_race(tree: Tree, make_run: MakeRun) -> None:
    """Medians have no interval, so nobody is first."""
    for ranks in (1, 2, 4):
        rows = curve([0.2, 0.7])
        for row in rows:
            row.wall_s = float(np.round(10.0 / ranks, 6))
            row.throughput_samples_per_s = row.samples / row.wall_s
        fields = {"dataset": "fashion_mnist", "model": "resnet8", "strategy": "ddp"}
        make_run(rows=rows, gpus_per_node=ranks, **fields)
    told = title("time_to_accuracy", tree)
    assert told == "The shortest median time to 60% is 5 s: PyTorch-DDP on 4 ranks"
