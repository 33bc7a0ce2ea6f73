"""Each framework trains as torch does: real ranks of its own Python, twenty steps, faults."""

import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import pytest

from ddl_tools import processes
from tests.frameworks import equality
from tests.frameworks.equality import (
    RTOL,
    STEPS,
    Result,
    Training,
    apart,
    assert_equal,
    distance,
    interpreter,
    numbers,
)

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.extended]

ALONE = [("tensorflow", "single"), ("keras", "single"), ("mxnet", "single")]
# Of two ranks; what carries the gradients.
CARRIES = {
    ("tensorflow", "multiworker"): "grpc",
    ("tensorflow", "horovod"): "gloo",
    ("keras", "spmd"): "gloo",
    ("mxnet", "kvstore"): "ps-lite",
    ("mxnet", "horovod"): "gloo",
}
OWN = [pair for pair in CARRIES if pair[1] != "horovod"]
DEEP = {
    "alexnet": {"image_size": 224},
    "googlenet": {"image_size": 112},  # a window of each pooling begins at the edge
    "resnet50": {"image_size": 64, "local_batch_size": 8},
}


@pytest.fixture(autouse=True)
def _installed(framework: str, strategy: str) -> None:
    interpreter(framework, strategy)


@pytest.fixture(scope="module")
def trained() -> Callable[..., Training]:
    """Return a function that trains by torch, once in each way."""

    @lru_cache
    def by_torch(workers: int = 2, steps: int = STEPS, **fields) -> Training:
        return Training(fields, steps, workers)

    return by_torch


@pytest.mark.parametrize(("framework", "strategy"), [*ALONE, *CARRIES])
def test_twenty_steps_equal_those_of_torch(trained, tmp_path, framework, strategy) -> None:
    want = trained() if strategy != "single" else trained(1, decay_norm_bias=False)
    got = want.run(tmp_path, framework, strategy)
    assert_equal(got, want.torch)
    assert got.state.updates == want.torch.state.updates
    settings = {"lr": want.rates[-1], "momentum": 0.9, "weight_decay": 0.01}
    for one in got.facts:
        assert one["settings"] == pytest.approx(settings)
        assert (one["device"], one["synchronous"]) == ("cpu", framework == "tensorflow")
        assert set(one["record"]["threads"].values()) == {1}
        carries = one["record"]["communication"].get("library")
        assert carries == CARRIES.get((framework, strategy))
    statistics = [name for name in got.state.values if "running" in name]
    for other in got.own[1:]:  # of the rank's own images, until the loop takes the mean
        for name in statistics:
            assert not np.allclose(other.values[name], got.own[0].values[name], rtol=1e-3)
    if framework == "keras":
        check_cores(got)


def check_cores(got: Result) -> None:
    """Check that each rank's threads of XLA are on a core of their own."""
    own = []
    for one in got.facts:
        cores = {core for name, on in one["cores"].items() if "XLA" in name for core in on}
        assert one["record"]["settings"]["cores_pinned"] == len(cores) == 1
        own.append(cores)
    if len(os.sched_getaffinity(0)) >= len(own):
        assert len(set.union(*own)) == len(own)


@pytest.mark.parametrize(("framework", "strategy"), OWN)
def test_a_resumed_training_equals_one_that_went_on(trained, tmp_path, framework, strategy) -> None:
    """Also in the random numbers of its dropouts."""
    want = trained()

    def run(epochs: list[int], **fields) -> Result:
        folder = tmp_path / str(epochs)
        return want.run(folder, framework, strategy, epochs=epochs, dropout=True, **fields)

    whole, first = run([0, 1]), run([0])
    second = run([1], begin=first.state)
    assert second.state.updates == whole.state.updates == 2 * STEPS
    assert second.losses == pytest.approx(whole.losses[1:], rel=RTOL)
    assert distance(numbers(second.state), numbers(whole.state)) <= 1
    assert distance(numbers(whole.state), numbers(want.torch.state)) >= 5


# With ReLU: one activation that changes its sign moves single values far. A decoupled decay is 0.7
# apart after five steps.
@pytest.mark.parametrize(("steps", "share"), [(1, 1e-3), (5, 0.1)])
@pytest.mark.parametrize(("framework", "strategy"), ALONE)
def test_the_first_steps_of_resnet8(trained, tmp_path, framework, strategy, steps, share) -> None:
    want = trained(1, steps, model="resnet8", epochs=1)
    got = want.run(tmp_path, framework, strategy)
    assert apart(got.state, want.torch.state, want.initial) <= share


# At a rate of nearly nothing the logits afterwards are those of the initial weights.
@pytest.mark.parametrize("model", DEEP)
@pytest.mark.parametrize(("framework", "strategy"), ALONE)
def test_the_first_loss_and_logits_of_a_deep_network(trained, framework, strategy, model) -> None:
    fields = {"local_batch_size": 2, "base_lr": 1e-12, **DEEP[model]}
    want = trained(1, 1, model=model, epochs=1, **fields)
    with TemporaryDirectory() as folder:  # AlexNet's states take half a gigabyte each
        got = want.run(Path(folder), framework, strategy)
    assert got.losses == pytest.approx(want.torch.losses, rel=RTOL)
    off = np.linalg.norm(got.logits - want.torch.logits) / np.linalg.norm(want.torch.logits)
    assert off <= 1e-3


@pytest.mark.parametrize(("fault", "said"), [("terminated 1", r"-15\b"), ("raising 1", "planted")])
@pytest.mark.parametrize(("framework", "strategy"), OWN)
def test_a_rank_that_ends_waits_for_no_other(
    trained, tmp_path, framework, strategy, fault, said
) -> None:
    with pytest.raises(AssertionError, match=rf"ranks ended with .*(.|\n)*{said}"):
        trained(steps=2, epochs=1).run(tmp_path, framework, strategy, fault=fault)


@pytest.mark.parametrize(
    ("framework", "strategy", "fault"),
    [
        ("keras", "spmd", "late 0"),
        ("tensorflow", "multiworker", "stopped 0"),
        ("tensorflow", "horovod", "stopped 0"),
    ],
)
def test_ranks_wait_for_one_that_is_late(trained, tmp_path, framework, strategy, fault) -> None:
    trained(steps=1, epochs=1).run(tmp_path, framework, strategy, fault=fault)


@pytest.mark.parametrize(("framework", "strategy"), [("mxnet", "kvstore")])
def test_servers_end_with_a_killed_rank(
    trained, tmp_path, monkeypatch, framework, strategy
) -> None:
    left: list[psutil.Process] = []

    def end_all(token: str) -> list[int]:
        until = time.monotonic() + 30
        while (found := of_rank_1(token)) and time.monotonic() < until:
            time.sleep(0.2)
        left.extend(found)
        return processes.end_all(token)

    monkeypatch.setattr(equality, "end_all", end_all)
    with pytest.raises(AssertionError, match="ranks ended with"):
        trained(steps=2, epochs=1).run(tmp_path, framework, strategy, fault="killed 1")
    assert left == []


def of_rank_1(token: str) -> list[psutil.Process]:
    found = []
    for process in processes.of_ranks(token):
        try:
            if process.environ()["RANK"] == "1":
                found.append(process)
        except (psutil.Error, KeyError):  # it has just ended
            pass
    return found
