"""Intervals cover what they say and equal arms stay undecided: the simulation, with fewer draws."""

import json
import runpy
from typing import Any

import numpy as np
import pytest

from ddl_core.records.paths import PROJECT

BENCHMARKS = PROJECT / "benchmarks"


@pytest.fixture(scope="module")
def simulation() -> dict[str, Any]:
    return runpy.run_path(str(BENCHMARKS / "coverage.py"))


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(14)


@pytest.mark.parametrize("rounds", [6, 10, 20])
def test_intervals_cover_95_percent(
    simulation: dict[str, Any], generator: np.random.Generator, rounds: int
) -> None:
    assert 0.93 <= np.mean(simulation["coverage"](generator, rounds, blocks=150)) <= 0.97


def test_arms_that_measure_twice_in_a_row_are_overrated(
    simulation: dict[str, Any], generator: np.random.Generator
) -> None:
    """What the order is for: the last arm's interval is too narrow if rounds go forth and back."""
    machine = {"kind": "forth and back", "drift": "quick", "tails": "normal"}
    assert simulation["coverage"](generator, 10, blocks=200, **machine)[-1] < 0.93


@pytest.mark.parametrize("sizes", [1, 8])
def test_equal_arms_are_rarely_decided(
    simulation: dict[str, Any], generator: np.random.Generator, sizes: int
) -> None:
    assert simulation["false_claims"](generator, 6, sizes, claims=200) <= 0.05


def test_the_committed_result_keeps_its_promise() -> None:
    result = json.loads((BENCHMARKS / "results" / "coverage.json").read_text())
    assert not result["provenance"]["git_dirty"]
    means = [cell["mean"] for cell in result["coverage"] if cell["order"] == "random"]
    assert len(means) == 20
    assert 0.93 <= min(means) <= max(means) <= 0.97
    decided = [cell["decided"] for cell in result["false_claims"]]
    assert max(*decided, *result["false_panels"].values()) <= 0.05
