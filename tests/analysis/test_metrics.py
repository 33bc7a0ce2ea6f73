"""Formulas against values worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from ddl_core.analysis import metrics


def test_throughput_is_images_over_time() -> None:
    assert metrics.throughput(90 * 1_281_167, 13 * 3600) == pytest.approx(2463.78, abs=0.01)
    assert math.isnan(metrics.throughput(10, 0))


def test_runtime_counts_every_epoch() -> None:
    assert metrics.runtime([5.0, 2.0, 2.5]) == 9.5
    assert math.isnan(metrics.runtime([]))


def test_efficiency_of_the_papers_runtimes() -> None:
    """13 h on 4 GPUs and 200 s on 1024: 0.914 efficient."""
    by_rate = metrics.relative_efficiency(4, 1 / (13 * 3600), 1024, 1 / 200)
    assert by_rate == pytest.approx(0.914, abs=5e-4)


def test_efficiency_is_one_at_its_base() -> None:
    assert metrics.relative_efficiency(4, 2464, 4, 2464) == 1


def test_interval_of_three_is_their_range() -> None:
    assert metrics.bootstrap_interval([10.0, 12.0, 11.0]) == (10.0, 12.0)


def test_interval_ignores_what_is_not_a_number_and_needs_two() -> None:
    assert metrics.bootstrap_interval([10.0, math.nan, 12.0]) == (10.0, 12.0)
    assert all(math.isnan(end) for end in metrics.bootstrap_interval([10.0]))
    assert all(math.isnan(end) for end in metrics.bootstrap_interval([]))


def test_interval_of_many_is_inside_their_range_and_covers() -> None:
    """Of 300 samples from a known distribution about 95 % of the intervals hold its median."""
    generator = np.random.default_rng(7)
    hits = 0
    for _ in range(300):
        sample = generator.normal(5, 1, size=15)
        low, high = metrics.bootstrap_interval(sample)
        assert sample.min() <= low < high <= sample.max()
        hits += low <= 5 <= high
    assert 0.90 <= hits / 300 <= 0.99


def test_interval_agrees_with_scipy() -> None:
    from scipy.stats import bootstrap

    sample = np.random.default_rng(3).normal(20, 2, size=25)
    theirs = bootstrap(
        (sample,), np.median, method="percentile", n_resamples=20_000, random_state=0
    ).confidence_interval
    assert metrics.bootstrap_interval(sample) == pytest.approx(tuple(theirs), abs=0.15)


def test_interval_is_the_same_every_time() -> None:
    sample = [3.0, 1.0, 4.0, 1.5, 5.0, 9.0, 2.0, 6.0]
    assert metrics.bootstrap_interval(sample) == metrics.bootstrap_interval(sample)


def test_ratio_interval_takes_the_spread_of_the_base_into_account() -> None:
    narrow = metrics.bootstrap_ratio_interval([20.0, 20.0, 20.0], [10.0, 10.0, 10.0])
    wide = metrics.bootstrap_ratio_interval([20.0, 20.0, 20.0], [8.0, 10.0, 12.5])
    assert narrow == (2.0, 2.0)
    assert wide == (1.6, 2.5)
    assert all(math.isnan(end) for end in metrics.bootstrap_ratio_interval([1.0, 2.0], [1.0]))


def test_summary_has_a_row_per_group_even_without_values() -> None:
    table = pd.DataFrame({"arm": ["a", "a", "a", "b"], "rate": [1.0, 3.0, 2.0, math.nan]})
    summary = metrics.summarise(table, ["arm"], "rate").set_index("arm")
    assert summary.loc["a"].tolist() == [3, 2.0, 1.0, 3.0, 1.0, 3.0]
    assert summary.loc["b", "n"] == 0
    assert summary.loc["b", ["median", "min", "max", "low", "high"]].isna().all()
