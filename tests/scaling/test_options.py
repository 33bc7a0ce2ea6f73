from dataclasses import replace
from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_tools.estimate import Estimate
from ddl_tools.scaling.accuracy import Accuracy
from ddl_tools.scaling.candidate import Candidate
from ddl_tools.scaling.options import Limits, Option, nearest, options

IMAGES, BATCH = 36_000, 100
ACCURACY = Accuracy(
    {
        "step": {400: Estimate(80, 79, 81), 1600: Estimate(60, 59, 61)},
        "cosine": {400: Estimate(70, 69, 71)},
    },
    "a test",
    level=True,
)


def candidate(step_s: float = 1.0, epoch_s: float = 0.0, **changes: Any) -> Candidate:
    """Return a candidate with a constant cost per epoch, known to 10 %."""

    def throughput(ranks: int) -> Estimate:
        rate = IMAGES / (IMAGES / BATCH / ranks * step_s + epoch_s)
        return Estimate(rate, rate / 1.1, rate * 1.1)

    spec = RunSpec(strategy="ddp", local_batch_size=BATCH, gpus_per_node=4)
    known = Candidate(spec, "Example Booster", (4, 8), ("two runs",), throughput)
    return replace(known, **changes)


def made(*ranks: int, step_s: float = 1.0, epoch_s: float = 0.0) -> list[Option]:
    return options(candidate(step_s, epoch_s), ranks, 4, IMAGES, 10, ACCURACY)


def test_time_and_node_hours_are_those_of_all_epochs() -> None:
    four, eight = made(4, 8)
    # 360 steps of 1 s over 4 ranks, ten epochs.
    assert four.deadline.value == pytest.approx(10 * 360 / 4 / 3600)
    assert (four.nodes, eight.nodes) == (1, 2)
    assert four.node_hours == four.deadline
    assert eight.node_hours.high == pytest.approx(2 * eight.deadline.high)
    assert four.deadline.high == pytest.approx(four.deadline.value * 1.1)
    assert (four.global_batch_size, eight.global_batch_size) == (400, 800)


def test_options_are_at_most_four_times_beyond_the_largest_size_and_have_a_whole_step() -> None:
    found = made(1, 2, 4, 16, 32, 33, 64)
    assert [(one.ranks, one.extrapolation) for one in found] == [(4, 1), (16, 2), (32, 4)]
    large = candidate(sizes=(4, 360))
    assert [one.ranks for one in options(large, (4, 360, 361), 4, IMAGES, 10, None)] == [4, 360]


def test_a_limit_is_met_uncertain_or_violated_by_the_whole_range() -> None:
    (one,) = made(4)
    ends = one.deadline
    for limit, verdict in (
        (1.001 * ends.high, "met"), (ends.value, "uncertain"), (0.999 * ends.low, "violated"),
    ):  # fmt: skip
        limits = Limits(deadline=limit)
        assert one.verdicts(limits) == {"deadline": verdict}
        assert (one.violation(limits) <= 0) == (verdict == "met")
    for least, verdict in ((79, "met"), (80, "uncertain"), (81.5, "violated")):
        assert one.verdicts(Limits(accuracy=least)) == {"accuracy": verdict}
    assert one.worst(Limits(deadline=1.0, accuracy=81.5)) == "violated"


def test_the_best_schedules_are_named_and_beyond_the_largest_batch_nothing_is_certain() -> None:
    four, middle, most, more = made(4, 8, 16, 32)
    assert four.schedules == ("step",)
    assert four.accuracy == Estimate(80, 79, 81)
    assert list(middle.accuracy.columns().values()) == pytest.approx(
        (70, 59, 81)
    )  # half way between, as a logarithm
    assert most.accuracy == Estimate(60, 59, 61) or most.schedules == ("cosine",)
    assert more.accuracy.low == 0


def test_the_nearest_meets_the_other_limits_if_any_does() -> None:
    found = made(4, 16)
    best = nearest(found, Limits(deadline=0.01, accuracy=75.0))
    assert (best["deadline"][0].ranks, best["deadline"][1]) == (4, "met")
    assert (best["accuracy"][0].ranks, best["accuracy"][1]) == (4, "violated")


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"deadline": -1.0}, "deadline=-1.0"),
        ({"node_hours": 0.0}, "node_hours=0.0"),
        ({"deadline": float("nan")}, "deadline=nan"),
        ({"accuracy": 101.0}, "accuracy=101.0"),
        ({"accuracy": 0.75}, "accuracy=0.75 .* percent"),
        ({"accuracy": 1.0}, "accuracy=1.0 .* percent"),
    ],
)
def test_wrong_limits_are_refused_by_name(limits: dict[str, float], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Limits(**limits)
