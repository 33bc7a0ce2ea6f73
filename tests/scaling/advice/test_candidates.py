import pytest

from ddl_core.errors import SpecError
from ddl_core.scaling.advice.accuracy import Accuracy, Span
from ddl_core.scaling.advice.candidates import Candidate, Limits, candidates, front, nearest
from tests.scaling.advice.planted import evidence

IMAGES = 36_000
ACCURACY = Accuracy(
    {"step": {400: Span(80, 79, 81), 1600: Span(60, 59, 61)}, "cosine": {400: Span(70, 69, 71)}},
    "a test",
    level=True,
)


def made(*ranks: int, accuracy: Accuracy | None = ACCURACY, **changes: object) -> list[Candidate]:
    return candidates(evidence(**changes), ranks, 4, IMAGES, 10, accuracy)  # type: ignore[arg-type]


def test_time_and_node_hours_are_those_of_all_epochs() -> None:
    four, eight = made(4, 8)
    # 360 steps of 1 s over 4 ranks, ten epochs; links and waiting cost nothing.
    assert four.deadline.value == pytest.approx(10 * 360 / 4 / 3600)
    assert (four.nodes, eight.nodes) == (1, 2)
    assert four.node_hours == four.deadline
    assert eight.node_hours.high == pytest.approx(2 * eight.deadline.high)
    assert four.deadline.high == pytest.approx(four.deadline.value * (1 + 1.645 * 0.01))
    assert (four.global_batch_size, eight.global_batch_size) == (400, 800)


def test_a_band_holds_what_all_admitted_sets_predict() -> None:
    (one,) = made(4, admitted=[{"step_s": 1.0}, {"step_s": 0.9}, {"step_s": 1.3}])
    assert one.deadline.low < 0.9 * one.deadline.value
    assert one.deadline.high > 1.3 * one.deadline.value


def test_an_epoch_has_a_whole_step() -> None:
    assert [one.ranks for one in made(4, 360, 361)] == [4, 360]


def test_energy_is_power_times_time() -> None:
    (one,) = made(4, power_w=(200.0, 300.0))
    assert one.energy is not None
    assert one.energy.value == pytest.approx(0.250 * 4 * one.deadline.value)
    assert one.energy.high == pytest.approx(0.300 * 4 * one.deadline.high)
    assert one.energy.low == pytest.approx(0.200 * 4 * one.deadline.low)
    assert made(4)[0].energy is None


def test_a_limit_is_kept_open_or_broken_by_the_whole_band() -> None:
    (one,) = made(4)
    ends = one.deadline
    for limit, verdict in (
        (1.001 * ends.high, "kept"), (ends.value, "open"), (0.999 * ends.low, "broken"),
    ):  # fmt: skip
        limits = Limits(deadline=limit)
        assert one.verdicts(limits) == {"deadline": verdict}
        assert (one.excess(limits) <= 0) == (verdict == "kept")
    for least, verdict in ((79, "kept"), (80, "open"), (81.5, "broken")):
        assert one.verdicts(Limits(accuracy=least)) == {"accuracy": verdict}
    assert one.worst(Limits(deadline=1.0, accuracy=81.5)) == "broken"


def test_what_nothing_is_known_of_is_open() -> None:
    (one,) = made(4, accuracy=None)
    assert one.worst(Limits(deadline=1.0, energy=5.0, accuracy=50.0)) == "open"


def test_the_best_schedules_are_named_and_beyond_the_largest_batch_nothing_is_sure() -> None:
    four, middle, most, more = made(4, 8, 16, 64)
    assert four.schedules == ("step",)
    assert four.accuracy == (80, 79, 81)
    assert middle.accuracy == pytest.approx((70, 59, 81))  # half way between, as a logarithm
    assert most.accuracy == (60, 59, 61) or most.schedules == ("cosine",)
    assert more.accuracy is not None
    assert more.accuracy.low == 0


def test_on_the_front_is_what_nothing_beats() -> None:
    slow = [{"step_s": 1.0, "epoch_s": 20.0}]
    found = made(4, 8, 16, admitted=slow) + made(4, 8, 16, admitted=slow, strategy="horovod")
    worse = made(4, 8, 16, admitted=[{"step_s": 1.1, "epoch_s": 20.0}])
    kept = front([*worse, *found])
    assert [one.ranks for one in kept] == [16, 8, 4]
    assert not set(kept) & set(worse)
    costs = [one.node_hours.value for one in kept]
    assert costs == sorted(costs, reverse=True)


def test_the_nearest_keeps_the_other_limits_if_any_does() -> None:
    found = made(4, 16)
    best = nearest(found, Limits(deadline=0.01, accuracy=75.0))
    assert (best["deadline"][0].ranks, best["deadline"][1]) == (4, "surely kept")
    assert (best["accuracy"][0].ranks, best["accuracy"][1]) == (4, "broken")


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"deadline": -1.0}, "deadline=-1.0 has to be above 0"),
        ({"node_hours": 0.0}, "node_hours=0.0 has to be above 0"),
        ({"energy": float("nan")}, "energy=nan has to be above 0"),
        ({"accuracy": 101.0}, "accuracy=101.0 has to be at most 100"),
    ],
)
def test_absurd_limits_are_refused(limits: dict[str, float], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        Limits(**limits)
