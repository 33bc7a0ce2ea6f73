import numpy as np
import pytest

from ddl_core.scaling.waiting import TAILS, behind, slowest_of

RANKS = 2.0 ** np.arange(11)


@pytest.mark.parametrize("tail", TAILS)
def test_one_rank_waits_for_nobody_and_more_ranks_wait_longer(tail: str) -> None:
    waits = slowest_of(RANKS, tail)
    assert waits[0] == pytest.approx(0, abs=1e-6)
    assert (np.diff(waits) > 0).all()


def test_known_expected_maxima() -> None:
    # Of normal numbers: 1/sqrt(pi) of two, and tables (e.g. Harter 1961); of exponential ones H_G.
    assert slowest_of([2, 4, 16, 1000], "normal") == pytest.approx(
        [0.56419, 1.02938, 1.76599, 3.24144], abs=2e-5
    )
    assert slowest_of([2, 4], "exponential") == pytest.approx([0.5, 1 + 1 / 2 + 1 / 3 + 1 / 4 - 1])


@pytest.mark.parametrize("tail", TAILS)
def test_equals_drawing(tail: str) -> None:
    random = np.random.default_rng(1)
    draw = random.standard_normal if tail == "normal" else random.standard_exponential
    drawn = draw((20_000, 64))
    mean = (drawn.max(axis=1) - drawn.mean(axis=1)).mean()
    assert slowest_of(64, tail) == pytest.approx(mean, rel=0.02)


@pytest.mark.parametrize("tail", TAILS)
def test_waits_of_single_ranks_have_that_mean_and_their_spread(tail: str) -> None:
    waits = behind(RANKS, tail)
    assert (waits >= 0).all()
    assert waits.mean(axis=1) == pytest.approx(slowest_of(RANKS, tail), abs=1e-6)
    random = np.random.default_rng(2)
    draw = random.standard_normal if tail == "normal" else random.standard_exponential
    drawn = draw((20_000, 64))
    one = drawn.max(axis=1) - drawn[:, 0]
    assert waits[6].std() == pytest.approx(one.std(), rel=0.1)


def test_a_million_ranks() -> None:
    assert slowest_of(1e6, "normal") == pytest.approx(4.86, abs=0.01)
    assert np.isfinite(behind(1e6, "exponential")).all()
