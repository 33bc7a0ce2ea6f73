"""The decision of a search, from throughputs alone."""

import math

import numpy as np
import pytest

from benchmarks import recommend_errors
from ddl_tools.recommend.race import Additive, Observation, race

STEADY = 0.005  # standard deviation of the logarithms


def observed(effects: dict[str, float], starts: int, sd: float = STEADY) -> list[Observation[str]]:
    """Return starts on a machine that drifts by 10 % from one to the next."""
    noise = np.random.default_rng(0)
    return [
        Observation(name, f"{number:02}", math.exp(effect + noise.normal(0, sd) + 0.1 * number))
        for number in range(starts)
        for name, effect in effects.items()
    ]


def test_slower_ones_are_dropped_and_like_ones_stay() -> None:
    found = race(observed({"a": 0, "as fast": 0.001, "slow": -0.2, "half": -0.9}, starts=4))
    assert set(found.left) == {"a", "as fast"}
    assert found.dropped["half"] == 1  # without a test
    assert found.dropped["slow"] > 1


def test_one_start_shows_no_variance_and_decides_only_what_is_hopeless() -> None:
    found = race(observed({"fast": 0, "a third slower": -0.4, "hopeless": -0.8}, starts=1))
    assert found.left == ["fast", "a third slower"]


def test_the_order_is_that_of_the_throughputs() -> None:
    found = race(observed({"third": -0.02, "first": 0, "second": -0.01}, starts=2, sd=0))
    assert found.left[0] == "first"
    assert found.log_ratio("second", "third") == pytest.approx(0.01)


def test_what_joins_later_is_compared_through_the_blocks_that_it_shares() -> None:
    late = [one for one in observed({"late": 0.3, "base": 0}, 6) if one.block >= "03"]
    early = [one for one in observed({"base": 0, "other": -0.1}, 6) if one.block < "03"]
    found = race([*early, *late])
    assert found.left[0] == "late"
    assert found.log_ratio("late", "other") == pytest.approx(0.4, abs=0.02)


def test_a_model_without_repetition_tests_nothing() -> None:
    model = Additive([Observation("a", "0", 2.0), Observation("b", "0", 1.0)])
    assert model.p_slower("b", "a") == 1.0


@pytest.mark.parametrize(("size", "field"), [(3, "equal"), (10, "equal"), (10, "falling")])
@pytest.mark.slow
def test_searches_rarely_drop_the_best_by_more_than_5_percent(size: int, field: str) -> None:
    generator = np.random.default_rng(recommend_errors.SEED)
    found = recommend_errors.errors(
        generator, size, recommend_errors.FIELDS[field], searches=100, drift="slow", tails="heavy"
    )
    assert found["dropped_best"] <= 0.05
    if field == "falling":
        assert found["left"] < size / 2
