"""MXNet trains as torch does: real ranks of its own Python, twenty steps, planted faults."""

import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import pytest

from ddl_tools.processes import carrying, end_all
from tests.frameworks import equality
from tests.frameworks.equality import (
    ROOM,
    STEPS,
    assert_equal,
    assert_fault_is_found,
    distance,
    numbers,
    trained_once,
)

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.extended]

FAULTS = "tests.frameworks.mxnet_faults"


@pytest.fixture(scope="module")
def training():
    return trained_once("mxnet")


@pytest.mark.parametrize(
    ("strategy", "workers", "library", "fields"),
    [
        ("single", 1, None, {}),
        ("kvstore", 2, "ps-lite", {}),
        ("horovod", 2, "gloo", {"decay_norm_bias": False}),
    ],
)
def test_twenty_steps_equal_those_of_torch(training, tmp_path, strategy, workers, library, fields):
    want = training(workers, **fields)
    got = want.run(tmp_path, "mxnet", strategy)
    assert_equal(got, want.torch)
    assert got.state.updates == want.torch.state.updates
    for one in got.settings:
        assert one == pytest.approx({"lr": want.rates[-1], "momentum": 0.9, "weight_decay": 0.01})
    for one in got.told:
        assert (one["device"], one["synchronous"]) == ("cpu", False)
        assert one["told"]["threads"] == {"compute": 1, "interop": 1}
        assert one["told"]["communication"].get("library") == library
    statistics = [name for name in got.state.values if "running" in name]
    for other in got.own[1:]:  # of the rank's own images, until the loop takes the mean
        for name in statistics:
            assert not np.allclose(other.values[name], got.own[0].values[name], rtol=1e-3)


@pytest.mark.parametrize("strategy", ["kvstore", "horovod"])
def test_a_resumed_training_equals_one_that_went_on(training, tmp_path, strategy):
    want = training()
    half = want.run(tmp_path / "half", "mxnet", strategy, epochs=[0])
    got = want.run(tmp_path / "rest", "mxnet", strategy, epochs=[1], begin=half.state)
    assert distance(numbers(got.state), numbers(want.torch.state)) <= 1
    assert got.losses == pytest.approx(want.torch.losses[1:], rel=1e-4)
    assert got.state.updates == 2 * STEPS


@pytest.mark.parametrize(
    "fault", ["momentum_that_holds_the_rate", "decoupled_decay", "variances_left_biased"]
)
def test_a_fault_of_the_update_is_found(training, tmp_path, fault):
    want = training(1)
    got = want.run(tmp_path, "mxnet", "single", fault=f"{FAULTS}:{fault}")
    assert_fault_is_found(got, want.torch)


@pytest.mark.parametrize(
    ("strategy", "fault"),
    [("kvstore", "update_of_the_servers"), ("horovod", "gradients_summed")],
)
def test_a_fault_of_the_group_is_found(training, tmp_path, strategy, fault):
    want = training()
    got = want.run(tmp_path, "mxnet", strategy, fault=f"{FAULTS}:{fault}")
    # Not the momenta: servers that update keep them.
    assert distance(got.state.values, want.torch.state.values) >= ROOM


@pytest.mark.parametrize(("steps", "times"), [(1, 1), (5, 20)])
def test_the_first_steps_of_resnet8_are_those_of_torch(training, tmp_path, steps, times):
    want = training(1, steps, model="resnet8", epochs=1)
    got = want.run(tmp_path, "mxnet", "single")
    # Not the momenta: where a ReLU changes sign by rounding, torch's own are as far off.
    assert distance(got.state.values, want.torch.state.values) <= times


@pytest.mark.parametrize("model", ["alexnet", "googlenet", "resnet50"])
def test_the_first_loss_of_large_networks_is_that_of_torch(training, model):
    want = training(1, 1, model=model, image_size=224, local_batch_size=4, epochs=1)
    with TemporaryDirectory() as folder:  # AlexNet's states take half a gigabyte each
        got = want.run(Path(folder), "mxnet", "single")
    assert got.losses == pytest.approx(want.torch.losses, rel=1e-4)


@pytest.mark.parametrize("fault", ["killed", "raising"])
def test_servers_and_scheduler_end_with_their_rank(training, tmp_path, monkeypatch, fault):
    left = []

    def watched(token):
        left.extend(living(token, "1"))  # the one that failed, and its server
        for process in carrying(token):
            with suppress(psutil.Error):
                if "tests.frameworks.driver" in process.cmdline():
                    process.terminate()
        left.extend(living(token, "0"))
        return end_all(token)

    monkeypatch.setattr(equality, "end_all", watched)
    with pytest.raises(AssertionError, match="ranks ended with"):
        training().run(tmp_path, "mxnet", "kvstore", fault=f"{FAULTS}:{fault}")
    assert left == []


def living(token: str, rank: str, patience_s: float = 30) -> list[psutil.Process]:
    """Return what is left of a rank, once nothing is or the time is up."""
    until = time.monotonic() + patience_s
    while True:
        found = []
        for process in carrying(token):
            with suppress(psutil.Error):
                if process.environ().get("RANK") == rank:  # nothing of one that has just ended
                    found.append(process)
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.2)
