"""Intervals over starts cover what they say: the simulation, with fewer draws."""

import json
import runpy
from typing import Any

import numpy as np
import pytest

from ddl_tools.records.paths import PROJECT

BENCHMARKS = PROJECT / "benchmarks"


@pytest.fixture(scope="module")
def simulation() -> dict[str, Any]:
    return runpy.run_path(str(BENCHMARKS / "coverage.py"))


@pytest.mark.parametrize(("starts", "rounds"), [(3, 7), (4, 2), (5, 3)])
def test_intervals_over_starts_cover_95_percent(
    simulation: dict[str, Any], starts: int, rounds: int
) -> None:
    found = simulation["coverage"](np.random.default_rng(14), starts, rounds, studies=150)
    assert 0.93 <= found["covered"] <= 0.97
    assert found["false_words"] <= 0.06


def test_intervals_over_the_windows_of_one_start_do_not(simulation: dict[str, Any]) -> None:
    found = simulation["coverage_of_one_start"](np.random.default_rng(14), studies=150)
    assert found["covered"] < 0.9


@pytest.mark.parametrize("sizes", [1, 8])
def test_equal_configurations_rarely_contradict_a_claim(
    simulation: dict[str, Any], sizes: int
) -> None:
    contradicted = simulation["false_contradictions"]
    assert contradicted(np.random.default_rng(14), 4, 2, sizes, claims=200) <= 0.05


def test_the_committed_result_keeps_its_promise() -> None:
    result = json.loads((BENCHMARKS / "results" / "coverage.json").read_text())
    assert not result["provenance"]["git_dirty"]
    covered = [cell["covered"] for cell in result["over_starts"]]
    assert 0.93 <= min(covered) <= max(covered) <= 0.97
    assert max(cell["covered"] for cell in result["one_start"]) < 0.9
    assert max(cell["false_words"] for cell in result["over_starts"]) <= 0.05
    assert max(cell["contradicted"] for cell in result["false_contradictions"]) <= 0.05
