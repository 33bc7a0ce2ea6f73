"""Every training beside its loader alone and training alone; what is missing is said."""

import math
from typing import Any

import pandas as pd
import pytest

from ddl_tools.analysis.figures import QUESTIONS, loader_bound
from ddl_tools.analysis.tables import runs_table
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import GPU, MACHINE, MakeRun
from tests.analysis.drawn import rows, words

SPREAD = (1.0, 1.01, 1 / 1.01)
IMAGES = 320  # of an invented epoch


def measure(make_run: MakeRun, rate: float, **fields: Any) -> None:
    """Write three repeats of a configuration with this geometric mean of its throughput."""
    for repeat, factor in enumerate(SPREAD):
        make_run(IMAGES / rate * factor, repeat=repeat, **fields)


def three(
    make_run: MakeRun, real: float, loading: float | None, training: float | None, **fields: Any
) -> None:
    """Write a configuration and its two halves."""
    measure(make_run, real, **fields)
    if loading:
        measure(make_run, loading, work="load", **fields)
    if training:
        free = {name: value for name, value in fields.items() if name != "data_format"}
        measure(make_run, training, **free | {"loader": "synthetic"})


def only(tree: Tree) -> dict[str, Any]:
    (row,) = loader_bound.points(runs_table(tree)).to_dict("records")
    return row


@pytest.mark.parametrize(
    ("rates", "system", "limit"),
    [
        ((19.8, 20.0, 80.0), GPU, "loader"),
        ((19.8, 80.0, 20.0), GPU, "training"),
        ((19.8, 20.5, 20.0), GPU, "either"),
        ((15.0, 80.0, 20.0), GPU, "neither alone"),
        ((15.0, 80.0, 20.0), MACHINE, "shared cores"),
        ((19.8, 80.0, 20.0), MACHINE, "training"),
        ((30.0, 80.0, 20.0), MACHINE, "unclear (above it)"),
        ((19.2, 80.0, 20.0), GPU, "inconclusive"),  # 0.96, but surely between 0.94 and 0.98 only
        ((18.8, 80.0, 20.0), GPU, "inconclusive"),
    ],
)
def test_limit(tree: Tree, make_run: MakeRun, rates: tuple, system: dict, limit: str) -> None:
    real, loading, training = rates
    three(make_run, real, loading, training, system=system)
    row = only(tree)
    assert row["limit"] == limit
    assert (row["loading"], row["training"]) == pytest.approx((loading, training))
    assert row["bound"] == pytest.approx(min(loading, training))
    assert row["in_turns"] == pytest.approx(1 / (1 / loading + 1 / training))
    assert row["ratio"] == pytest.approx(real / min(loading, training))
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"]
    assert (row["n"], row["loading_n"], row["training_n"]) == (3, 3, 3)


@pytest.mark.parametrize(
    ("halves", "limit"),
    [
        ((None, 20.0), "not measured: loader alone"),
        ((20.0, None), "not measured: synthetic"),
        ((None, None), "not measured: loader alone, synthetic"),
    ],
)
def test_missing_half_is_said(tree: Tree, make_run: MakeRun, halves: tuple, limit: str) -> None:
    three(make_run, 15.0, *halves)
    row = only(tree)
    assert row["limit"] == limit
    assert all(math.isnan(row[name]) for name in ("bound", "in_turns", "ratio", "ratio_low"))
    assert limit in words(QUESTIONS["loader_bound"].draw(loader_bound.points(runs_table(tree))))
    if halves == (None, 20.0):
        make_run(work="load", status="failed", rows=[])
        assert only(tree)["limit"] == "failed: loader alone"


def test_one_run_of_each_cannot_say_what_limits(tree: Tree, make_run: MakeRun) -> None:
    make_run(20.0)
    make_run(20.0, work="load")
    make_run(10.0, loader="synthetic")
    row = only(tree)
    assert row["ratio"] == pytest.approx(1.0)
    assert row["limit"] == "inconclusive"
    assert math.isnan(row["ratio_low"])


@pytest.mark.parametrize(
    ("loading", "training", "limit"),
    [
        ({"loader": "turbo"}, {}, "not measured: loader alone"),
        ({"data_format": "tfrecord"}, {}, "not measured: loader alone"),
        ({"strategy": "ddp", "gpus_per_node": 2}, {}, "not measured: loader alone"),
        ({"model": "resnet18"}, {"model": "resnet18"}, "not measured: synthetic"),
        ({"strategy": "horovod"}, {"strategy": "horovod"}, "not measured: synthetic"),
        ({}, {"study": "another"}, "not measured: synthetic"),
    ],
)
def test_a_half_agrees_in_what_it_depends_on(
    tree: Tree, make_run: MakeRun, loading: dict, training: dict, limit: str
) -> None:
    """Other fields than those that test_pooling walks."""
    measure(make_run, 15.0)
    measure(make_run, 20.0, work="load", **loading)
    measure(make_run, 18.0, **{"loader": "synthetic"} | training)
    assert only(tree)["limit"] == limit


def test_what_has_no_bound_is_not_drawn(tree: Tree, make_run: MakeRun) -> None:
    three(make_run, 15.0, 200.0, 20.0, loader="dali_cpu", data_format="tfrecord")
    measure(make_run, 15.0, loader="native", data_format="tfrecord")
    figure = QUESTIONS["loader_bound"].draw(loader_bound.points(runs_table(tree)))
    assert rows(figure) == ["DALI (CPU), TFRecord"]
    said = words(figure)
    assert "0.75 [0.73, 0.77]" in said
    assert "of its bound; limit: shared cores" in said
    assert "Without both halves, not drawn (CSV): 1." in said
    assert figure.axes[0].get_xlim()[1] > 200


def test_nothing_is_changed(tree: Tree, make_run: MakeRun) -> None:
    three(make_run, 15.0, 20.0, 18.0)
    runs = runs_table(tree)
    before = runs.copy()
    table = loader_bound.points(runs)
    pd.testing.assert_frame_equal(runs, before)
    pd.testing.assert_frame_equal(table, loader_bound.points(runs.sample(frac=1, random_state=1)))


def test_of_alike_halves_both_are_the_bound(tree: Tree, make_run: MakeRun) -> None:
    """The smaller of two alike halves is smaller by chance, and a bound that is too low."""
    for repeat, factor in enumerate((0.9, 1.0, 1 / 0.9)):
        make_run(IMAGES / 19.0 * factor, repeat=repeat, work="load")
        make_run(IMAGES / 20.0 * factor, repeat=repeat, loader="synthetic")
        make_run(IMAGES / 15.0, repeat=repeat)
    row = only(tree)
    assert row["bound"] == pytest.approx((19.0 * 20.0) ** 0.5)
    assert row["ratio"] == pytest.approx(15.0 / row["bound"])
    assert row["ratio_low"] < 15.0 / 20.0 < 15.0 / 19.0 < row["ratio_high"]


def test_of_halves_far_apart_the_smaller_is_the_bound(tree: Tree, make_run: MakeRun) -> None:
    """Even if it is not sure which half is smaller."""
    for repeat, factor in enumerate((0.5, 1.0, 2.0)):
        make_run(IMAGES / 20.0 * factor, repeat=repeat, work="load")
        make_run(IMAGES / 30.0, repeat=repeat, loader="synthetic")
        make_run(IMAGES / 19.0, repeat=repeat)
    row = only(tree)
    assert row["loading_low"] < 30.0 < row["loading_high"]
    assert row["bound"] == pytest.approx(row["loading"])
    assert row["ratio"] == pytest.approx(19.0 / row["loading"])
