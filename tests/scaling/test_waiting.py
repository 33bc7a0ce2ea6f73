import numpy as np
import pytest

from ddl_core.scaling.waiting import Delays

RANKS = 2.0 ** np.arange(11)
KINDS = {
    "jitter": Delays(1, 0, 4),
    "stalls": Delays(0, 1, 4),
    "stalls of ranks": Delays(0, 1),
    "both": Delays(1, 1, 4),
    "mostly jitter": Delays(1, 0.1, 4),
    "mostly stalls": Delays(0.1, 1, 4),
}
each_kind = pytest.mark.parametrize("delays", KINDS.values(), ids=list(KINDS))


@each_kind
def test_one_rank_waits_for_nobody_and_more_ranks_never_wait_less(delays: Delays) -> None:
    waits = delays.slowest(RANKS)
    assert waits[0] == 0
    assert (np.diff(waits) >= -1e-9).all()
    assert waits[-1] > waits[2]


def test_known_expected_maxima() -> None:
    # Of normal numbers: 1/sqrt(pi) of two, and tables (e.g. Harter 1961); of exponential ones H_G.
    assert Delays(1, 0, 4).slowest([2, 4, 16, 1000]) == pytest.approx(
        [0.56419, 1.02938, 1.76599, 3.24144], abs=1e-4
    )
    assert Delays(0, 1).slowest([2, 4]) == pytest.approx([1 / 2, 1 / 2 + 1 / 3 + 1 / 4])
    assert Delays(0, 1, 4).slowest([4, 8, 16]) == pytest.approx([0, 1 / 2, 1 / 2 + 1 / 3 + 1 / 4])


@each_kind
@pytest.mark.parametrize("ranks", [4, 64])
def test_equals_drawing(delays: Delays, ranks: int) -> None:
    random = np.random.default_rng(1)
    nodes = random.standard_exponential((20_000, -(-ranks // delays.ranks_per_node)))
    late = delays.jitter_s * random.standard_normal((20_000, ranks))
    late += delays.stall_s * np.repeat(nodes, delays.ranks_per_node, axis=1)[:, :ranks]
    mean = (late.max(axis=1) - late.mean(axis=1)).mean()
    assert delays.slowest(ranks) == pytest.approx(mean, rel=0.02, abs=1e-9)
    waits = delays.behind(ranks)[0]
    assert (waits >= 0).all()
    assert waits.mean() == pytest.approx(delays.slowest(ranks), abs=1e-6)
    assert waits.std() == pytest.approx((late.max(axis=1) - late[:, 0]).std(), rel=0.05, abs=1e-9)


def test_without_delays_nobody_waits() -> None:
    assert not Delays(0, 0, 4).slowest(RANKS).any()
    assert not Delays(0, 0, 4).behind(RANKS).any()


@each_kind
def test_a_million_ranks(delays: Delays) -> None:
    assert np.isfinite(delays.behind(1e6)).all()
    assert np.isfinite(delays.slowest(1e6)).all()
    assert Delays(1, 0).slowest(1e6) == pytest.approx(4.86, abs=0.01)
