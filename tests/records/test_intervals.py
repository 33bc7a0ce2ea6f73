"""Interval arithmetic against a grid on which every unit of time is looked at by itself."""

import numpy as np
import pytest

from ddl_tools.records.profiling import intersect, length, subtract, union

GRID = 60


def random_spans(rng: np.random.Generator) -> np.ndarray:
    """Return up to 12 spans on the grid: unsorted, overlapping, touching, some empty."""
    starts = rng.integers(0, GRID, size=rng.integers(0, 13))
    return np.column_stack([starts, np.minimum(starts + rng.integers(0, 15, len(starts)), GRID)])


def cells(spans: np.ndarray) -> np.ndarray:
    """Return for each unit of the grid whether a span covers it."""
    covered = np.zeros(GRID, dtype=bool)
    for start, end in spans.astype(int):
        covered[start:end] = True
    return covered


@pytest.mark.parametrize("unit", [np.int64, np.float64])
@pytest.mark.parametrize("seed", range(30))
def test_all_four_agree_with_the_grid(seed: int, unit: type) -> None:
    rng = np.random.default_rng(seed)
    a, b = random_spans(rng).astype(unit), random_spans(rng).astype(unit)
    expected = {
        union: (union(a), cells(a)),
        intersect: (intersect(a, b), cells(a) & cells(b)),
        subtract: (subtract(a, b), cells(a) & ~cells(b)),
    }
    for found, covered in expected.values():
        assert (cells(found) == covered).all()
        assert length(found) == covered.sum()
        assert found.dtype == unit
        assert (found[:, 0] < found[:, 1]).all()
        assert (found[1:, 0] > found[:-1, 1]).all()  # sorted, and nothing touches


def test_nanoseconds_of_the_epoch_stay_whole() -> None:
    """A float64 near 2e18 is 256 ns wide: the times of a trace must not pass through one."""
    start = 1_763_000_000_000_000_001
    a = [[start, start + 3]]
    assert subtract(a, [[start + 1, start + 2]]).tolist() == [
        [start, start + 1],
        [start + 2, start + 3],
    ]
    assert length(a) == 3
    assert subtract(a, []).tolist() == a


def test_nothing_is_no_time() -> None:
    assert length([]) == 0
    assert union([[1, 1]]).shape == (0, 2)
    assert intersect([[0, 1]], [[1, 2]]).shape == (0, 2)
    assert subtract([], [[1, 2]]).shape == (0, 2)
