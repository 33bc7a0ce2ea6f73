"""Formulas against values worked out by hand."""

import math

import pytest

from ddl_tools.analysis import metrics
from ddl_tools.records.run import EpochRecord


def test_throughput_is_images_over_time() -> None:
    assert metrics.throughput(90 * 1_281_167, 13 * 3600) == pytest.approx(2463.78, abs=0.01)
    assert math.isnan(metrics.throughput(10, 0))


def test_runtime_counts_every_epoch() -> None:
    assert metrics.runtime([5.0, 2.0, 2.5]) == 9.5
    assert math.isnan(metrics.runtime([]))


def epoch(number: int, cold: bool, samples: int, wall_s: float) -> EpochRecord:
    return EpochRecord.model_construct(
        phase="train", epoch=number, cold=cold, samples=samples, wall_s=wall_s
    )


def test_the_throughput_of_a_run_is_told_or_why_there_is_none() -> None:
    cold = epoch(0, True, 64, 9.0)
    first, second = epoch(1, False, 64, 1.0), epoch(2, False, 64, 3.0)
    assert metrics.describe([cold, first, second]) == "32.0 images/s in 2 warm epochs"
    assert metrics.describe([cold, first]) == "64.0 images/s in 1 warm epoch"
    assert metrics.describe([cold]).startswith("no throughput, as no epoch counts")
