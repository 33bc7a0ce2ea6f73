from dataclasses import replace

import numpy as np
import pytest

from ddl_core.errors import SpecError
from ddl_core.scaling.collectives import Network, all_reduce, ring, tree

NET = Network(20e9, 5e-6, 200e9, 1e-6, 4)
RANKS = 2.0 ** np.arange(21)


def test_one_rank_reduces_nothing() -> None:
    for algorithm in ("ring", "tree", "fastest"):
        assert all_reduce(1e8, 1, replace(NET, algorithm=algorithm)) == 0


def test_ring_by_hand() -> None:
    # 8 ranks on 2 nodes: 14 steps, 2 of them between nodes; 7/4 of the bytes through the slow link.
    assert ring(1e8, 8, NET) == pytest.approx(1.75 * 1e8 / 20e9 + 12e-6 + 2 * 5e-6)
    assert ring(1e8, 4, NET) == pytest.approx(1.5 * 1e8 / 200e9 + 6e-6)


def test_tree_by_hand() -> None:
    # 16 ranks on 4 nodes: a chain of 3 inside, two levels between, both ways.
    assert tree(1e8, 16, NET) == pytest.approx(2e8 / (0.92 * 20e9) + 6e-6 + 4 * 5e-6)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "fastest"])
def test_more_bytes_and_slower_links_take_longer(algorithm: str) -> None:
    network = replace(NET, algorithm=algorithm)
    took = all_reduce(np.array([[1e3], [1e6], [1e9]]), RANKS, network)
    assert (np.diff(took, axis=0) >= 0).all()
    for slower in (
        replace(network, bandwidth=NET.bandwidth / 2),
        replace(network, latency_s=2 * NET.latency_s),
    ):
        assert (all_reduce(1e6, RANKS, slower) >= took[1]).all()


def test_without_latency_and_with_infinite_bandwidth_it_is_free() -> None:
    assert not all_reduce(1e9, RANKS, Network()).any()


def test_many_ranks_and_short_messages_take_the_tree_long_ones_the_ring() -> None:
    few_long = ring(1e9, 16, NET) < tree(1e9, 16, NET)
    many_short = ring(1e4, 4096, NET) > tree(1e4, 4096, NET)
    assert few_long
    assert many_short
    fastest = all_reduce(1e6, RANKS, replace(NET, algorithm="fastest"))
    assert (fastest == np.minimum(ring(1e6, RANKS, NET), tree(1e6, RANKS, NET))).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bandwidth", -1.0),
        ("bandwidth", float("nan")),
        ("inside_bandwidth", 0.0),
        ("latency_s", -1e-6),
        ("gpus_per_node", 0),
    ],
)
def test_absurd_networks_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(SpecError, match=f"{field}={value!r} has to be"):
        Network(**{field: value})


def test_absurd_messages_are_refused() -> None:
    with pytest.raises(SpecError, match="ranks=0 has to be at least 1"):
        all_reduce(1, 0, NET)
    with pytest.raises(SpecError, match="nbytes=-1 has to be at least 0"):
        all_reduce(-1, 2, NET)
