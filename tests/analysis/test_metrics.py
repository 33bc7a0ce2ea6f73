"""Formulas against values worked out by hand."""

import math

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
