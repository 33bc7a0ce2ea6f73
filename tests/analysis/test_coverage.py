"""Intervals over starts cover what they say: the simulation, with fewer draws."""

import json

import numpy as np
import pytest

from benchmarks import coverage
from ddl_tools.records.paths import PROJECT


@pytest.mark.parametrize(("starts", "rounds"), [(3, 7), (4, 2), (5, 3)])
def test_intervals_over_starts_cover_95_percent(starts: int, rounds: int) -> None:
    found = coverage.coverage(np.random.default_rng(14), starts, rounds, studies=150)
    assert 0.93 <= found["covered"] <= 0.97
    assert found["false_words"] <= 0.06


def test_intervals_over_the_windows_of_one_start_do_not() -> None:
    found = coverage.coverage_of_one_start(np.random.default_rng(14), studies=150)
    assert found["covered"] < 0.9


def test_the_committed_result_keeps_its_promise() -> None:
    result = json.loads((PROJECT / "benchmarks" / "results" / "coverage.json").read_text())
    assert not result["provenance"]["git_dirty"]
    covered = [cell["covered"] for cell in result["over_starts"]]
    assert 0.93 <= min(covered) <= max(covered) <= 0.97
    assert max(cell["covered"] for cell in result["one_start"]) < 0.9
    assert max(cell["false_words"] for cell in result["over_starts"]) <= 0.05
