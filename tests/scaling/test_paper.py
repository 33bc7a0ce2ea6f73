"""What the paper states: ranges contain every stated value and contradict no bound."""

import itertools

import pytest

from ddl_core.config import IMAGENET_TRAIN_IMAGES
from ddl_tools.records.paths import PAPER
from ddl_tools.scaling.candidate import Candidate
from ddl_tools.scaling.paper import (
    BASE,
    EPOCHS,
    base_step_s,
    base_time_s,
    candidates,
    efficiency_range,
    read_rows,
    stated,
)

IMAGES = EPOCHS * IMAGENET_TRAIN_IMAGES
EVERY = [(model, one) for model in ("resnet50", "resnet152") for one in candidates(model)]
ALL = pytest.mark.parametrize(
    ("model", "one"),
    EVERY,
    ids=[f"{model}-{one.spec.strategy}-{one.spec.loader}" for model, one in EVERY],
)


def test_the_paper_bounds_the_time_of_these() -> None:
    assert [(model, one.spec.strategy, one.spec.loader) for model, one in EVERY] == [
        ("resnet50", "ddp", "dali_cpu"),
        ("resnet50", "horovod", "dali_cpu"),
        ("resnet50", "ddp", "dali_gpu"),
        ("resnet50", "horovod", "dali_gpu"),
        ("resnet152", "ddp", "dali_cpu"),
    ]
    assert candidates("resnet101") == [], "no time is stated"
    assert candidates("resnet18") == []


@ALL
def test_the_interval_contains_every_stated_efficiency(model: str, one: Candidate) -> None:
    base = base_time_s(model)
    found = stated(model, one.spec.strategy, one.spec.loader)
    assert found
    for row in found:
        hours = one.hours(row.ranks, IMAGES)
        follows = base * BASE / row.ranks / row.value / 3600
        assert row.bound in ("value", "lower")  # "more than": the time is less
        assert hours.low <= follows, row
        assert follows <= hours.high or row.bound == "lower", row


@ALL
def test_the_interval_contains_every_stated_time(model: str, one: Candidate) -> None:
    wanted = {"quantity": "runtime", "model": model, "strategy": one.spec.strategy}
    mine = [row for row in read_rows(PAPER / "runtime.csv") if wanted.items() <= row.items()]
    assert mine
    for row in mine:
        hours, value = one.hours(int(row["world_size"]), IMAGES), float(row["value"]) / 3600
        assert row["bound"] == "lower" or hours.low <= value, row
        assert row["bound"] == "upper" or value <= hours.high, row


@ALL
def test_time_falls_and_its_range_widens_with_gpus(model: str, one: Candidate) -> None:
    spans = [one.hours(4 * 2**power, IMAGES) for power in range(11)]
    for before, after in itertools.pairwise(spans):
        assert after.low < before.low
        assert after.high < before.high
        assert after.high / after.low >= before.high / before.low * 0.999
    assert one.covers(4096)
    assert not one.covers(4097)
    assert not one.covers(2)


def test_times_by_hand() -> None:
    one = candidates("resnet50")[0]
    # 13 h on 4 GPUs, rounded; E is above 0.85 up to 256 GPUs (E09), and at most 1.
    hours = one.hours(64, IMAGES)
    assert hours.low == pytest.approx(12.5 * 4 / 64)
    assert hours.high == pytest.approx(13.5 * 4 / 64 / 0.85)
    assert hours.value == pytest.approx((hours.low * hours.high) ** 0.5), "the geometric mean"
    assert list(one.hours(4, IMAGES).columns().values())[1:] == pytest.approx((12.5, 13.5))


def test_a_step_by_hand() -> None:
    step = base_step_s("resnet50")
    derived = {row["statement"]: float(row["value"]) for row in read_rows(PAPER / "derived.csv")}
    assert step * (1 / 0.76 - 1) == pytest.approx(derived["D29"], rel=1e-5)
    assert base_step_s("resnet101") is None


def test_efficiency_ranges() -> None:
    cpu, gpu = (stated("resnet50", "ddp", loader) for loader in ("dali_cpu", "dali_gpu"))
    assert efficiency_range(cpu, 4) == (1, 1)
    assert efficiency_range(cpu, 256) == (0.85, 1)
    assert efficiency_range(cpu, 512) == (0.75, 1), "E10 is of 1024, and E does not rise"
    assert efficiency_range(gpu, 512) == (0.65, 1)
    beyond = efficiency_range(cpu, 4096)
    # Amdahl's law: 255 s is 1/0.75 - 1, and 1023 s four times that.
    assert beyond[0] == pytest.approx(1 / (1 + 1023 / 255 / 3))
    assert efficiency_range(stated("resnet50", "ddp", "native"), 256) is None


def test_statements_are_taken_once_and_where_they_belong() -> None:
    cpu = stated("resnet50", "ddp", "dali_cpu")
    assert [one.statement for one in cpu] == ["E01", "E02", "E09", "E10", "R04"]
    runtime = next(one for one in cpu if one.statement == "R04")
    assert runtime.value == pytest.approx(0.914, abs=1e-3)  # D04 of data/paper/derived.csv
    assert {one.statement for one in stated("resnet50", "ddp", "dali_gpu")} == {"E01", "E03"}
    native = {one.statement for one in stated("resnet50", "horovod", "native")}
    assert native == {"E05", "E07"}, "E13 names no network"
