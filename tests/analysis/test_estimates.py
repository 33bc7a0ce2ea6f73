"""Ratios, their intervals and decisions, against scipy and against values computed by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from ddl_tools.analysis import estimates
from ddl_tools.estimate import Estimate

ABOVE = np.array([11.0, 12.5, 10.2, 13.1, 11.9])
BASE = np.array([10.0, 11.2, 10.4, 11.6, 10.5])


def interval(estimate: Estimate) -> tuple[float, float]:
    return estimate.low, estimate.high


def test_pairs_are_students_t_on_log_ratios() -> None:
    ratio = estimates.paired_ratio(ABOVE, BASE)
    expected = stats.ttest_rel(np.log(ABOVE), np.log(BASE))
    assert interval(ratio) == pytest.approx(np.exp(expected.confidence_interval(0.95)))
    assert ratio.value == pytest.approx(stats.gmean(ABOVE / BASE))
    assert (ratio.n, ratio.df) == (5, 4)
    with pytest.raises(ValueError, match="not 5 and 4"):
        estimates.paired_ratio(ABOVE, BASE[:4])


def test_runs_that_are_no_pairs_are_welchs_t() -> None:
    ratio = estimates.unpaired_ratio(ABOVE, BASE[:3])
    expected = stats.ttest_ind(np.log(ABOVE), np.log(BASE[:3]), equal_var=False)
    assert interval(ratio) == pytest.approx(np.exp(expected.confidence_interval(0.95)))
    assert (ratio.n, ratio.df) == (3, pytest.approx(expected.df))


def test_a_common_drift_widens_unpaired_intervals_only() -> None:
    drift = np.array([1.0, 1.3, 0.8, 1.1, 0.7])
    drifting = estimates.paired_ratio(ABOVE * drift, BASE * drift)
    assert interval(drifting) == pytest.approx(interval(estimates.paired_ratio(ABOVE, BASE)))
    apart = estimates.unpaired_ratio(ABOVE * drift, BASE * drift)
    assert apart.log_se > 3 * drifting.log_se


def test_a_reciprocal_and_an_efficiency_say_the_same_as_their_ratio() -> None:
    ratio, reciprocal = estimates.paired_ratio(ABOVE, BASE), estimates.paired_ratio(BASE, ABOVE)
    assert interval(reciprocal) == pytest.approx((1 / ratio.high, 1 / ratio.low))
    assert estimates.p_greater(ratio) == pytest.approx(estimates.p_less(reciprocal))
    half = estimates.scaled(ratio, 0.5)
    expected = (ratio.value / 2, ratio.low / 2, ratio.high / 2)
    assert (half.value, *interval(half)) == pytest.approx(expected)
    # Whether the efficiency is below 1 is whether the ratio is below 2.
    assert estimates.p_less(half) == pytest.approx(estimates.p_less(ratio, 2.0))


@pytest.mark.parametrize("values", [[], [3.0], [3.0, 3.1]])
def test_two_observations_have_no_interval_and_decide_nothing(values: list[float]) -> None:
    for alone in (
        estimates.middle(values),
        estimates.paired_ratio(values, values),
        estimates.unpaired_ratio(values, ABOVE),
        estimates.unpaired_ratio(ABOVE, values),
    ):
        assert np.isnan(interval(alone)).all()
        assert estimates.p_greater(alone, 0.001) == estimates.p_less(alone, 1000) == 1
        assert estimates.decision(alone) == estimates.INCONCLUSIVE


def test_values_without_spread_have_an_interval_without_width() -> None:
    same = estimates.paired_ratio([4.0] * 3, [2.0] * 3)
    assert (same.value, *interval(same)) == pytest.approx((2, 2, 2))
    assert estimates.decision(same) == estimates.GREATER
    assert estimates.p_greater(estimates.paired_ratio([2.0] * 3, [2.0] * 3)) == 1
    welch = estimates.unpaired_ratio([4.0] * 4, [2.0] * 3)
    assert (*interval(welch), welch.df) == pytest.approx((2, 2, 2))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_what_has_no_logarithm_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="positive, finite"):
        estimates.middle([1.0, wrong])


@pytest.mark.parametrize(
    ("ratio", "log_se", "word"),
    [
        (1.2, 0.001, "greater"),
        (0.8, 0.001, "less"),
        (1.01, 0.001, "equivalent"),
        (0.8, 0.4, "inconclusive"),
        (1.02, 0.02, "inconclusive"),
    ],
)
def test_a_word_says_what_the_interval_shows(ratio: float, log_se: float, word: str) -> None:
    # Eight values whose log mean has this standard error.
    logs = np.tile([-1.0, 1.0], 4) * log_se * math.sqrt(7)
    estimate = estimates.middle(ratio * np.exp(logs))
    assert estimates.decision(estimate, margin=0.05) == word


@pytest.mark.parametrize(("log_sd", "margin"), [(0.1, 0.05), (0.02, 0.05), (0.1, 0.01), (0, 0.05)])
def test_the_pairs_needed_are_the_fewest_of_that_half_width(log_sd: float, margin: float) -> None:
    n = estimates.pairs_needed(log_sd, margin)
    assert estimates.resolution(log_sd, n) <= margin
    assert n == 3 or estimates.resolution(log_sd, n - 1) > margin
    ratio = estimates.paired_ratio(ABOVE, BASE)
    spread = float(np.std(np.log(ABOVE / BASE), ddof=1))
    assert estimates.resolution(spread, 5) == pytest.approx(ratio.high / ratio.value - 1)
    assert math.isinf(estimates.resolution(spread, 2))
