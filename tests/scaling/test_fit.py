import numpy as np
import pytest

from ddl_core.errors import DataError, SpecError
from ddl_core.scaling.fit import Parameter, fit
from ddl_core.scaling.power_law import power_law

X = np.array([1.0, 2, 4, 8, 16])
SLOPE = Parameter("slope", "1", 1e-3, 1e3, 1.0)
LIMIT = Parameter("limit", "1", 1.0, 1e6, 1e6)


def limited(point: dict[str, float]) -> np.ndarray:
    return np.minimum(point["slope"] * X, point["limit"])


def test_exact_data_give_exact_parameters() -> None:
    found = fit([SLOPE], lambda point: point["slope"] * X, 3 * X, 0.05)
    assert found.best["slope"] == pytest.approx(3, rel=1e-3)
    assert found.off < 0.01
    estimate = found.estimates["slope"]
    assert estimate.known == "identified"
    # Of the mean of five values with 5 % each, 90 %.
    half = 1.645 * 0.05 / np.sqrt(5)
    assert estimate.low == pytest.approx(3 * np.exp(-half), rel=0.01)
    assert estimate.high == pytest.approx(3 * np.exp(half), rel=0.01)


def test_a_limit_that_was_never_reached_is_known_from_one_side() -> None:
    found = fit([SLOPE, LIMIT], limited, 3 * X, 0.05)
    limit = found.estimates["limit"]
    assert limit.known == "at least"
    assert limit.value == pytest.approx(1e6, rel=0.1)  # where it has no effect
    assert 40 < limit.low < 70
    far = found.band(lambda point: np.minimum(point["slope"] * 1000, point["limit"]), noise=0)
    assert far.low < 70  # all is open down to what was seen
    assert far.high > 2900


def test_a_limit_that_was_reached_is_identified() -> None:
    found = fit([SLOPE, LIMIT], limited, np.minimum(3 * X, 20), 0.05)
    assert found.estimates["limit"].known == "identified"
    assert found.best["limit"] == pytest.approx(20, rel=0.02)


def test_what_has_no_effect_stays_neutral_and_is_not_identified() -> None:
    idle = Parameter("idle", "1", 1e-3, 1e3, 7.0)
    found = fit([SLOPE, idle], lambda point: point["slope"] * X, 3 * X, 0.05)
    assert found.estimates["idle"].known == "not identified"
    assert found.best["idle"] == pytest.approx(7.0, rel=0.01)


def test_two_that_only_their_product_tells_are_both_not_identified() -> None:
    pair = [Parameter(name, "1", 1e-2, 1e2, 1.0) for name in ("a", "b")]
    found = fit(pair, lambda point: point["a"] * point["b"] * X, 3 * X, 0.05)
    assert found.best["a"] * found.best["b"] == pytest.approx(3, rel=1e-2)
    for estimate in found.estimates.values():
        assert estimate.high / estimate.low > 1e3
    product = found.band(lambda point: point["a"] * point["b"], noise=0)
    assert product.high / product.low < 1.1


def test_noise_widens_the_band_of_a_measurement() -> None:
    found = fit([SLOPE], lambda point: point["slope"] * X, 3 * X, 0.05)
    narrow, wide = (
        found.band(lambda point: point["slope"], noise=noise) for noise in (False, True)
    )
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


def test_bands_hold_nine_of_ten_new_measurements() -> None:
    random, held = np.random.default_rng(3), 0
    for _ in range(100):
        values = 3 * X * np.exp(0.05 * random.standard_normal(len(X)))
        found = fit([SLOPE], lambda point: point["slope"] * X, values, 0.05)
        band = found.band(lambda point: point["slope"] * 64)
        held += int(band.low <= 3 * 64 * np.exp(0.05 * random.standard_normal()) <= band.high)
    assert 82 <= held <= 99


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([3.0], "a fit needs two measurements at least, not 1"),
        ([3.0, 0.0], r"measured values have to be positive numbers, not \[3.0, 0.0\]"),
        ([3.0, -1.0], "measured values have to be positive"),
        ([3.0, float("nan")], "measured values have to be positive"),
    ],
)
def test_absurd_measurements_are_refused(values: list[float], said: str) -> None:
    with pytest.raises(DataError, match=said):
        fit([SLOPE], lambda point: point["slope"] * X[: len(values)], values, 0.05)


def test_contradictory_measurements_are_refused_and_the_worst_is_named() -> None:
    values = 3 * X
    values[3] *= 20
    with pytest.raises(
        DataError, match=r"contradict .* number 4, 480, by -\d+ %; look for runs of"
    ):
        fit([SLOPE], lambda point: point["slope"] * X, values, 0.05)


def test_absurd_parameters_are_refused() -> None:
    with pytest.raises(SpecError, match="low of b=-1 has to be above 0"):
        Parameter("b", "", -1, 1, 1)
    with pytest.raises(DataError, match="b has no room between 2 and 1"):
        Parameter("b", "", 2, 1, 1)
    with pytest.raises(SpecError, match="noise=0 has to be above 0"):
        fit([SLOPE], lambda point: point["slope"] * X, X, 0)


def test_power_law() -> None:
    law = power_law([1, 2, 4], [10, 20, 40])
    assert law.exponent == pytest.approx(1)
    assert law.predict(8) == pytest.approx(80)
    with pytest.raises(DataError, match="two numbers of ranks at least"):
        power_law([4, 4], [1, 2])
    with pytest.raises(SpecError, match="above 0"):
        power_law([1, 2], [1, -2])
