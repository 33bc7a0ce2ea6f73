"""The calculator of exposed communication: all-reduces, messages, and what backward hides."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ddl_core.errors import SpecError
from ddl_tools.emulation.layers import layers
from ddl_tools.scaling.communication import (
    Exchange,
    Gradients,
    Network,
    all_reduce,
    exposed_s,
    messages,
    reduced_in_cycles,
    resnet,
    ring,
    tree,
)

NET = Network(20e9, 5e-6, 200e9, 1e-6, 4)
RANKS = 2.0 ** np.arange(21)
GRADIENTS = resnet("resnet50")


@pytest.mark.parametrize(
    ("model", "parameters", "flop"),
    [
        ("resnet18", 11_689_512, 1.8e9),
        ("resnet50", 25_557_032, 4.1e9),
        ("resnet101", 44_549_160, 7.8e9),
        ("resnet152", 60_192_808, 11.5e9),
    ],
)
def test_sizes_are_those_of_the_networks(model: str, parameters: int, flop: float) -> None:
    assert resnet(model).total == 4 * parameters
    assert sum(layer.flop for layer in layers(model)) == pytest.approx(flop, rel=0.02)


def test_the_last_layer_is_ready_first_and_the_first_last() -> None:
    assert len(GRADIENTS.nbytes) == 161
    assert GRADIENTS.nbytes[0] == 4 * 1000  # the bias behind the last layer's weights
    assert GRADIENTS.nbytes[-1] == 4 * 64 * 3 * 49
    assert (np.diff(GRADIENTS.ready) >= 0).all()
    assert GRADIENTS.ready[0] < 0.01
    assert GRADIENTS.ready[-1] == 1


def test_all_reduces_by_hand() -> None:
    # 8 ranks on 2 nodes: 14 steps, 2 of them between nodes; 7/4 of the bytes through the slow link.
    assert ring(1e8, 8, NET) == pytest.approx(1.75 * 1e8 / 20e9 + 12e-6 + 2 * 5e-6)
    assert ring(1e8, 4, NET) == pytest.approx(1.5 * 1e8 / 200e9 + 6e-6)
    # 16 ranks on 4 nodes: a chain of 3 inside, two levels between, both ways.
    assert tree(1e8, 16, NET) == pytest.approx(2e8 / (0.92 * 20e9) + 6e-6 + 4 * 5e-6)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "fastest"])
def test_more_bytes_and_slower_links_take_longer(algorithm: str) -> None:
    network = replace(NET, algorithm=algorithm)
    took = all_reduce(np.array([[1e3], [1e6], [1e9]]), RANKS, network)
    assert (np.diff(took, axis=0) >= 0).all()
    for slower in ({"bandwidth": NET.bandwidth / 2}, {"latency_s": 2 * NET.latency_s}):
        assert (all_reduce(1e6, RANKS, replace(network, **slower)) >= took[1]).all()


@pytest.mark.parametrize("bucket_mb", [0.5, 25, 64, 1000])
def test_buckets_hold_all_bytes_and_close_at_their_size(bucket_mb: float) -> None:
    sent = messages(Exchange(GRADIENTS, "ddp", bucket_mb=bucket_mb))
    assert sum(message.nbytes for message in sent) == GRADIENTS.total
    assert sent[-1].ready == 1
    first = 1 if bucket_mb == 25 else bucket_mb
    for message, size in zip(sent[:-1], [first, *[bucket_mb] * len(sent)], strict=False):
        assert message.nbytes >= size * 2**20
    assert len(sent) == 1 or bucket_mb < 1000


def test_one_process_sends_nothing_and_stages_send_half_as_much_again() -> None:
    assert messages(Exchange(GRADIENTS, "single")) == []
    stages = [messages(Exchange(GRADIENTS, "deepspeed", zero_stage=s)) for s in (0, 1, 2)]
    total = GRADIENTS.total
    assert stages == [[(total, 1.0)], [(1.5 * total, 1.0)], [(1.5 * total, 1.0)]]


def recorder(took: float) -> tuple[list[float], Callable[[float], float]]:
    """Return a list of messages and a function that puts them there; each takes `took` seconds."""
    sent: list[float] = []

    def seconds(nbytes: float) -> float:
        sent.append(nbytes)
        return took

    return sent, seconds


def test_cycles_by_hand() -> None:
    sent, seconds = recorder(1.5)
    exchange = Exchange(GRADIENTS, "horovod", cycle_ms=1000)
    ready, sizes = np.array([0.1, 0.6, 2.7]), np.array([1.0, 2.0, 4.0])
    # At 0.5 the first; that ends at 2.0 with the second ready; at 3.5 the third.
    assert reduced_in_cycles(ready, sizes, seconds, exchange) == pytest.approx(5.0)
    assert sent == [1, 2, 4]


@pytest.mark.parametrize("fusion_mb", [8, 1e-6])
def test_cycles_fuse_up_to_the_limit_and_never_get_stuck(fusion_mb: float) -> None:
    sent, seconds = recorder(0.01)
    exchange = Exchange(GRADIENTS, "horovod", fusion_mb=fusion_mb, cycle_ms=1)
    reduced_in_cycles(np.zeros_like(GRADIENTS.ready), GRADIENTS.nbytes, seconds, exchange)
    assert sum(sent) == pytest.approx(GRADIENTS.total)
    assert max(sent) <= max(fusion_mb * 2**20, GRADIENTS.nbytes.max())
    assert fusion_mb == 8 or len(sent) == len(GRADIENTS.nbytes)


@pytest.mark.parametrize("strategy", ["ddp", "horovod", "deepspeed"])
def test_slower_links_expose_more_and_one_rank_or_free_links_nothing(strategy: str) -> None:
    exchange, ranks = Exchange(GRADIENTS, strategy), RANKS[:13]
    before = exposed_s(exchange, 0.1, NET, ranks)
    for slower in (replace(NET, bandwidth=1e9), replace(NET, latency_s=1e-3)):
        after = exposed_s(exchange, 0.1, slower, ranks)
        assert (after >= before - 1e-12).all()
        assert after[-1] > before[-1]
    # Horovod's last cycle has yet to come when backward ends.
    exchange = replace(exchange, cycle_ms=1e-6)
    assert exposed_s(exchange, 0.1, NET, 1) == pytest.approx([0])
    assert exposed_s(exchange, 0.1, Network(), RANKS) == pytest.approx(0, abs=1e-8)


def test_backward_hides_all_of_ddp_but_the_last_bucket() -> None:
    half = Gradients(np.array([26.0, 26.0]) * 2**20, np.array([0.5, 1.0]))
    two = Exchange(half, "ddp", bucket_mb=26)
    slow = Network(30 * 2**20)
    took = float(all_reduce(26 * 2**20, 2, slow))
    assert took < 1  # so the first is gone when the second is ready
    assert exposed_s(two, 3.0, slow, 2) == pytest.approx([took])
    whole = replace(two, strategy="deepspeed")
    assert exposed_s(whole, 3.0, slow, 2) == pytest.approx([2 * took])
    assert exposed_s(replace(whole, zero_stage=1), 3.0, slow, 2) == pytest.approx([3 * took])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: all_reduce(1, 0, NET), "ranks=0"),
        (lambda: exposed_s(Exchange(GRADIENTS), 1, NET, 0), "ranks=0"),
        (lambda: exposed_s(Exchange(GRADIENTS), 0, NET, 2), "compute_s=0"),
        (lambda: Exchange(GRADIENTS, "fsdp"), "strategy='fsdp'"),
        (lambda: Exchange(GRADIENTS, "deepspeed", zero_stage=3), "zero_stage=3"),
        (lambda: resnet("vgg16"), r"model='vgg16'; allowed: resnet18, resnet50"),
    ],
)
def test_wrong_values_are_refused_by_name(wrong: Callable[[], object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        wrong()
