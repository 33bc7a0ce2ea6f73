"""From runs of an accuracy study to points and figures."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ddl_tools.analysis.configurations import configuration_table
from ddl_tools.analysis.figures import (
    QUESTIONS,
    accuracy,
    accuracy_differences,
    accuracy_runs,
    schedules,
)
from ddl_tools.analysis.plot.canvas import title_of
from ddl_tools.analysis.redraw import tables_of
from ddl_tools.analysis.tables import runs_table
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import MACHINE, MakeRun, curve
from tests.analysis.drawn import ACCURACY, PAPER, points_of, words

T_2 = 4.302653  # Student's t, 97.5 %, of two degrees of freedom


@pytest.fixture
def runs(make_run: MakeRun, tree: Tree) -> pd.DataFrame:
    """Three schedules at batches of 16 and 320, two seeds; the largest cosine runs diverge."""
    for repeat in (0, 1):
        for schedule, small, large in (
            ("step", 0.80, 0.40),
            ("cosine", 0.81, 0.10),
            ("exponential", 0.70, 0.60),
        ):
            fields = ACCURACY | {"schedule": schedule, "repeat": repeat}
            best = small + 0.02 * repeat
            make_run(rows=curve([0.5, 0.75, best]), **fields)
            loss = math.nan if schedule == "cosine" else 1.0
            make_run(rows=curve([0.1, 0.2, large], loss=loss), accumulation=20, **fields)
    make_run(loader="synthetic")  # of the laptop study
    return runs_table(tree)


@pytest.fixture
def points(runs: pd.DataFrame) -> pd.DataFrame:
    return accuracy.batch_points(runs, PAPER)


def measured(tree: Tree) -> pd.DataFrame:
    points = accuracy.batch_points(runs_table(tree), PAPER)
    return points[points["source"] == "measured"]


def sentences(tree: Tree) -> list[str]:
    return QUESTIONS["accuracy_vs_batch_size"].sentences(measured(tree))


def row(points: pd.DataFrame, schedule: str, batch: int) -> pd.Series:
    chosen = points["schedule"].eq(schedule) & points["global_batch_size"].eq(batch)
    (index,) = points[chosen & points["source"].eq("measured")].index
    return points.loc[index]


@pytest.mark.usefixtures("runs")
def test_mean_spread_and_updates_by_hand(tree: Tree, make_run: MakeRun) -> None:
    step = row(measured(tree), "step", 16)
    assert (step["n"], step["value"]) == pytest.approx((2, 0.81))
    assert step[["low", "high"]].isna().all()
    make_run(rows=curve([0.5, 0.75, 0.84]), **ACCURACY, schedule="step", repeat=2)
    points = measured(tree)
    step = row(points, "step", 16)
    half = T_2 * 0.02 / math.sqrt(3)
    assert (step["n"], step["value"], step["low"], step["high"]) == pytest.approx(
        (3, 0.82, 0.82 - half, 0.82 + half), rel=1e-4
    )
    assert step["sd"] == pytest.approx(0.02)
    assert (step["updates"], row(points, "step", 320)["updates"]) == (60, 3)


def test_time_to_accuracy_is_of_the_runs_that_reached_it(points: pd.DataFrame) -> None:
    columns = ["reached", "epochs_to_target", "seconds_to_target"]
    assert row(points, "step", 16)["target"] == pytest.approx(0.9 * 0.82)  # cosine's is the best
    for schedule in ("step", "exponential"):
        assert row(points, schedule, 16)[columns].tolist() == [2, 2, 40]
    assert row(points, "step", 320)["reached"] == 0
    assert math.isnan(row(points, "step", 320)["epochs_to_target"])


@pytest.mark.parametrize("lost", [{}, {"loss": math.nan}], ids=["late", "diverged"])
def test_the_lucky_ones_alone_have_no_time_to_accuracy(
    tree: Tree, make_run: MakeRun, lost: dict[str, float]
) -> None:
    for repeat, top1 in enumerate((0.8, 0.8, 0.5)):
        rows = curve([0.4, 0.5, top1], **(lost if repeat == 2 else {}))
        make_run(rows=rows, **ACCURACY, schedule="step", repeat=repeat)
        make_run(rows=curve([0.4, 0.8, 0.8]), **ACCURACY, schedule="cosine", repeat=repeat)
    points = measured(tree)
    assert points.groupby("schedule")["reached"].first().to_dict() == {"step": 2, "cosine": 3}
    times = points.groupby("schedule")["seconds_to_target"].first()
    assert times.isna().to_dict() == {"step": True, "cosine": False}


def test_a_study_of_learning_rates_is_one_of_accuracy(tree: Tree, make_run: MakeRun) -> None:
    for base_lr in (0.1, 0.2):
        make_run(rows=curve([0.4, 0.5, 0.8]), **ACCURACY, base_lr=base_lr)
    assert measured(tree)["base_lr"].tolist() == [0.1, 0.2]
    assert QUESTIONS["comparison"].points(tables_of(tree, "accuracy", runs_table(tree))).empty


def test_optimisers_have_throughputs_and_accuracies(tree: Tree, make_run: MakeRun) -> None:
    for optimizer in ("sgd", "lars"):
        make_run(rows=curve([0.4, 0.5, 0.8]), **ACCURACY, optimizer=optimizer)
    assert measured(tree)["optimizer"].tolist() == ["lars", "sgd"]
    found = QUESTIONS["comparison"].points(tables_of(tree, "accuracy", runs_table(tree)))
    assert len(found) == 2


def test_diverged_runs_are_results_apart_from_the_mean(points: pd.DataFrame) -> None:
    cosine = row(points, "cosine", 320)
    assert (cosine["n"], cosine["diverged"], cosine["failed"]) == (0, 2, 0)
    assert math.isnan(cosine["value"])
    assert cosine["diverged_value"] == pytest.approx(0.10)
    drawn = QUESTIONS["accuracy_vs_batch_size"].draw(points).axes[0].lines
    crosses = [value for line in drawn if line.get_marker() == "x" for value in line.get_ydata()]
    assert [value for value in crosses if not math.isnan(value)] == [pytest.approx(0.10)]


def test_loss_is_up_to_the_largest_batch_that_did_not_diverge(points: pd.DataFrame) -> None:
    table = accuracy_differences.lost(points).set_index("label")
    lost = {"SGD, step": 0.41, "SGD, cosine": 0.0, "SGD, exponential": 0.11}
    assert table["lost"].round(6).to_dict() == lost
    assert table["to_batch"].to_dict()["SGD, cosine"] == 16


def welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Return the difference of the means with the interval of Welch's t-test."""
    interval = stats.ttest_ind(one, other, equal_var=False).confidence_interval()
    return np.mean(one) - np.mean(other), *interval


@pytest.mark.parametrize("begin", [0, 3])
def test_loss_is_of_the_means_of_all_runs_whatever_their_seeds(
    make_run: MakeRun, tree: Tree, begin: int
) -> None:
    """The largest batch has a seed more, or none in common; two runs show no interval."""
    smaller = {"step": (0.80, 0.82, 0.84), "cosine": (0.80, 0.82)}
    larger = {"step": (0.50, 0.51, 0.55, 0.60), "cosine": (0.50, 0.51)}
    for values, accumulation, first in ((smaller, 1, 0), (larger, 20, begin)):
        for schedule, ends in values.items():
            for repeat, end in enumerate(ends, first):
                fields = ACCURACY | {"schedule": schedule, "repeat": repeat}
                make_run(rows=curve([0.1, end]), accumulation=accumulation, **fields)
    table = accuracy_differences.lost(measured(tree)).set_index("label")
    wanted = welch(smaller["step"], larger["step"])
    assert tuple(table.loc["SGD, step", ["lost", "lost_low", "lost_high"]]) == pytest.approx(wanted)
    assert table.loc["SGD, cosine", "lost"] == pytest.approx(0.305)
    assert table.loc["SGD, cosine", ["lost_low", "lost_high"]].isna().all()
    said = "SGD, step {:.1f} [{:.1f}, {:.1f}]".format(*(100 * one for one in wanted))
    assert any(f"{said}; SGD, cosine 30.5." in one for one in sentences(tree))


def test_the_loss_to_a_batch_is_of_those_that_did_not_diverge_there(points: pd.DataFrame) -> None:
    title = title_of(QUESTIONS["accuracy_vs_batch_size"].draw(points))
    assert title.startswith("From batch 16 to 320, SGD, exponential loses 11.0 points of accuracy")
    for text in QUESTIONS["accuracy_vs_batch_size"].sentences(points)[:2]:
        assert "SGD, cosine" not in text


def test_accuracy_studies_stand_in_no_figure_of_throughput(runs: pd.DataFrame) -> None:
    assert set(configuration_table(runs)["study"]) == {"laptop"}
    assert set(accuracy_runs.made(runs)["study"]) == {"accuracy_tiny"}


def test_the_paper_and_confirmed_others_stand_beside_ours(points: pd.DataFrame) -> None:
    stated = points[points["source"] == "stated"]
    assert len(stated) == len(PAPER.accuracy)
    assert stated.loc[stated["global_batch_size"] == 65_536, "value"].tolist() == [0.52, 0.41, 0.31]
    others = points[points["source"] == "published"]
    assert set(others["label"]) == {"Goyal et al., ResNet101", "LARS (NUS-HPC-AI-Lab)", "haiku"}
    assert others["value"].between(0.7, 0.8).all()
    unconfirmed = PAPER.published[PAPER.published["evidence"] == "unconfirmed"]
    assert not unconfirmed.empty
    assert not set(unconfirmed["value"] / 100) & set(others["value"])


def test_no_statement_of_the_paper_hides_another_one(points: pd.DataFrame) -> None:
    (ax,) = QUESTIONS["accuracy_vs_batch_size"].draw(points[points["source"] != "measured"]).axes
    open_marks = [line for line in ax.lines if line.get_markerfacecolor() == "none"]
    places = [tuple(place) for line in open_marks for place in line.get_xydata()]
    assert len(places) == PAPER.accuracy["statement"].nunique()
    pixels = ax.transData.transform(places)
    gaps = [math.dist(one, other) for one, other in itertools.combinations(pixels, 2)]
    assert min(gaps) > open_marks[0].get_markersize()


def said(name: str, runs: pd.DataFrame) -> str:
    return words(QUESTIONS[name].draw(points_of(name, runs)))


def test_captions_say_how_many_runs_and_which_interval(runs: pd.DataFrame) -> None:
    batches = said("accuracy_vs_batch_size", runs)
    assert "Means of the runs; bars: their 95 % intervals. Diverged: 2 runs." in batches
    assert "loses 41.0 points of accuracy" in batches


def test_both_evaluations_are_compared(make_run: MakeRun, tree: Tree) -> None:
    """Of the two evaluations one has cosine last, the other one has it first."""
    for repeat in range(4):
        for schedule, running, precise in (("cosine", 0.3, 0.6), ("exponential", 0.5, 0.55)):
            fields = ACCURACY | {"schedule": schedule, "repeat": repeat, "precise_bn": True}
            left = curve([0.2, running + 0.01 * repeat])
            left[-1].precise_bn_top1 = precise + 0.01 * repeat
            make_run(rows=left, accumulation=20, **fields)
            more = fields | {"warmup_epochs": 3.0}
            if schedule == "cosine" and repeat:
                make_run(rows=curve([0.2, 0.7 + 0.02 * repeat]), accumulation=20, **more)
    twice = runs_table(tree)
    points = accuracy.batch_points(twice, PAPER)
    table = accuracy_differences.differences(points).set_index(["label", "evaluation"])
    assert table["difference"].to_dict() == {
        ("SGD, exponential", accuracy_runs.RUNNING): pytest.approx(0.2),
        ("SGD, exponential", accuracy_runs.PRECISE): pytest.approx(-0.05),
        ("SGD, cosine, warm-up epochs 3", accuracy_runs.RUNNING): pytest.approx(0.425),
    }
    warm = table.loc["SGD, cosine, warm-up epochs 3", :].iloc[0]
    ends = (0.72, 0.74, 0.76), (0.3, 0.31, 0.32, 0.33)
    assert (warm["n"], *warm[["difference_low", "difference_high"]]) == pytest.approx(
        (3, *welch(*ends)[1:])
    )
    assert warm["p"] == pytest.approx(stats.ttest_ind(*ends, equal_var=False).pvalue)
    title = said("accuracy_vs_batch_size", twice)
    assert re.search(r": by \+20\.0 .* with running statistics and -5\.0 \[", title)


def test_answers_name_the_batch_of_each_evaluation_with_its_loss(
    make_run: MakeRun, tree: Tree
) -> None:
    """The interval of one evaluation ends just above 0, that of the other one below 0."""
    for repeat, wobble in enumerate((-0.006, 0.0, 0.006)):
        for accumulation, running, precise in ((1, 0.8, 0.8), (4, 0.7850, 0.7855)):
            rows = curve([0.2, running + wobble * (accumulation == 4)])
            rows[-1].precise_bn_top1 = precise + 1.1 * wobble * (accumulation == 4)
            for schedule in ("cosine", "step"):
                fields = ACCURACY | {"schedule": schedule, "repeat": repeat, "precise_bn": True}
                make_run(rows=rows, accumulation=accumulation, **fields)
    worse = sentences(tree)[2]
    half = 100 * T_2 * 0.006 / math.sqrt(3)
    loss = f"1.50 [{1.5 - half:.3g}, {1.5 + half:.3g}]"
    assert f"with running statistics SGD, cosine 64 ({loss})" in worse
    assert "with statistics estimated anew SGD, cosine none" in worse


def test_the_table_has_each_batch_of_each_way_in_both_evaluations(
    make_run: MakeRun, tree: Tree
) -> None:
    """The ways with the most batches come first."""
    for accumulation, names in ((1, ["step"]), (4, ["step"]), (20, ["cosine", "step"])):
        for schedule in names:
            for repeat, wobble in enumerate((-0.01, 0.0, 0.01)):
                rows = curve([0.2, 0.8 - 0.02 * accumulation + wobble])
                rows[-1].precise_bn_top1 = 0.8
                fields = ACCURACY | {"schedule": schedule, "repeat": repeat, "precise_bn": True}
                make_run(rows=rows, accumulation=accumulation, **fields)
    table = QUESTIONS["accuracy_vs_batch_size"].table(measured(tree))
    batches = [f"top-1 (%), batch {size}" for size in (16, 64, 320)]
    assert list(table) == ["configuration", "evaluation", *batches, "runs"]
    assert table["configuration"].tolist() == ["SGD, step"] * 2 + ["SGD, cosine"] * 2
    assert table["evaluation"].tolist() == list(accuracy_runs.EVALUATIONS) * 2
    assert table.loc[0, batches].tolist() == ["78.0 [75.5, 80.5]", "72.0 [69.5, 74.5]",
                                              "40.0 [37.5, 42.5]"]  # fmt: skip
    assert table.loc[2, batches].tolist() == ["", "", "40.0 [37.5, 42.5]"]


def test_the_schedules_drawn_are_those_of_the_papers_figure() -> None:
    points = schedules.schedule_points(PAPER)
    assert set(points["schedule"]) == {"step", "cosine", "exponential"}
    assert points["value"].max() == pytest.approx(25.6)
    last = points.groupby("schedule")["value"].last()
    assert last["step"] == pytest.approx(0.0256)
    assert last["exponential"] == pytest.approx(25.6 * 0.95**89)


def test_machines_and_other_ways_to_a_batch_are_not_pooled(tree: Tree, make_run: MakeRun) -> None:
    """A batch of 64 as four of 16 or as one: other batch statistics."""
    ways: list[dict[str, Any]] = [
        {"accumulation": 4},
        {"local_batch_size": 64},
        {"accumulation": 4, "repeat": 1, "system": MACHINE | {"cpu_cores": 64}},
    ]
    for way in ways:
        for schedule in ("step", "cosine"):
            make_run(rows=curve([0.1, 0.2]), **ACCURACY | {"schedule": schedule} | way)
    ours = measured(tree)
    assert ours["n"].tolist() == [1] * 6
    assert ours["label"].nunique() == 6
    for way, n in (("batch 16, accumulation 4", 4), ("batch 64, accumulation 1", 2)):
        assert ours["label"].str.contains(way).sum() == n
    looks = [
        (line.get_color(), line.get_marker())
        for line in QUESTIONS["accuracy_vs_batch_size"].draw(ours).axes[0].lines
        if line.get_marker() != "_"
    ]
    assert len({look for look in looks if look[1] not in ("None", "x")}) == 6


def test_a_network_is_judged_by_its_own_best(tree: Tree, make_run: MakeRun) -> None:
    for model, best in (("resnet18", 0.4), ("resnet50", 0.8)):
        for schedule in ("step", "cosine"):
            make_run(rows=curve([0.1, best]), **ACCURACY | {"model": model, "schedule": schedule})
    ours = measured(tree).set_index("model")
    assert ours.loc["resnet18", "target"].tolist() == pytest.approx([0.36, 0.36])
    assert set(ours["reached"]) == {1}


def test_a_new_source_is_drawn_under_its_own_name(runs: pd.DataFrame) -> None:
    new = PAPER.published[PAPER.published["evidence"] == "source_read"].head(2)
    new = new.assign(source="Somebody 2027", global_batch_size=[256, 512])
    published = pd.concat([PAPER.published, new], ignore_index=True)
    points = accuracy.batch_points(runs, replace(PAPER, published=published))
    assert "Somebody 2027" in set(points["label"])
    others = points[points["source"] != "measured"]
    assert "Somebody 2027" in words(QUESTIONS["accuracy_vs_batch_size"].draw(others))
