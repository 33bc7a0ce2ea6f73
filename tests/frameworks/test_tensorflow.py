"""TensorFlow trains as torch does: real ranks of its own Python, twenty steps, planted faults."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from tests.frameworks.equality import (
    STEPS,
    apart,
    assert_equal,
    assert_fault_is_found,
    distance,
    numbers,
    trained_once,
)

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.extended]

FAULTS = "tests.frameworks.tensorflow_faults"


@pytest.fixture(scope="module")
def training():
    return trained_once("tensorflow")


@pytest.mark.parametrize(
    ("strategy", "workers", "library", "fields"),
    [
        ("single", 1, None, {}),
        ("multiworker", 2, "grpc", {}),
        ("horovod", 2, "gloo", {"decay_norm_bias": False}),
    ],
)
def test_twenty_steps_equal_those_of_torch(training, tmp_path, strategy, workers, library, fields):
    want = training(workers, **fields)
    got = want.run(tmp_path, "tensorflow", strategy)
    assert_equal(got, want.torch)
    assert got.state.updates == want.torch.state.updates
    for one in got.settings:
        assert one == pytest.approx({"lr": want.rates[-1], "momentum": 0.9, "weight_decay": 0.01})
    for one in got.told:
        assert (one["device"], one["synchronous"]) == ("cpu", True)
        assert one["told"]["threads"] == {"compute": 1, "interop": 1}
        assert one["told"]["communication"].get("library") == library
    statistics = [name for name in got.state.values if "running" in name]
    for other in got.own[1:]:  # of the rank's own images, until the loop takes the mean
        for name in statistics:
            assert not np.allclose(other.values[name], got.own[0].values[name], rtol=1e-3)


@pytest.mark.parametrize("strategy", ["multiworker", "horovod"])
def test_a_resumed_training_equals_one_that_went_on(training, tmp_path, strategy):
    want = training()
    half = want.run(tmp_path / "half", "tensorflow", strategy, epochs=[0])
    got = want.run(tmp_path / "rest", "tensorflow", strategy, epochs=[1], begin=half.state)
    assert distance(numbers(got.state), numbers(want.torch.state)) <= 1
    assert got.losses == pytest.approx(want.torch.losses[1:], rel=1e-4)
    assert got.state.updates == 2 * STEPS


@pytest.mark.parametrize(
    "fault",
    [
        "momentum_that_holds_the_rate",
        "decoupled_decay",
        "gradients_summed",
        "statistics_of_the_global_batch",
    ],
)
def test_a_planted_fault_is_found(training, tmp_path, fault):
    want = training()
    got = want.run(tmp_path, "tensorflow", "multiworker", fault=f"{FAULTS}:{fault}")
    assert_fault_is_found(got, want.torch)


# Planted, a decoupled decay is 0.7 apart after five steps.
@pytest.mark.parametrize(("steps", "share"), [(1, 1e-3), (5, 0.1)])
def test_the_first_steps_of_resnet8_are_those_of_torch(training, tmp_path, steps, share):
    want = training(1, steps, model="resnet8", epochs=1)
    got = want.run(tmp_path, "tensorflow", "single")
    assert apart(got.state, want.torch.state, want.initial) <= share


# At a rate of nearly nothing the logits afterwards are those of the initial weights.
@pytest.mark.parametrize("model", ["alexnet", "googlenet", "resnet50"])
def test_the_first_loss_and_logits_of_large_networks_are_those_of_torch(training, model):
    fields = {"model": model, "image_size": 224, "local_batch_size": 4, "base_lr": 1e-12}
    want = training(1, 1, epochs=1, **fields)
    with TemporaryDirectory() as folder:  # AlexNet's states take half a gigabyte each
        got = want.run(Path(folder), "tensorflow", "single")
    assert got.losses == pytest.approx(want.torch.losses, rel=1e-4)
    off = np.linalg.norm(got.logits - want.torch.logits) / np.linalg.norm(want.torch.logits)
    assert off <= 1e-3


@pytest.mark.parametrize("strategy", ["multiworker", "horovod"])
def test_a_rank_that_is_told_to_end_does(training, tmp_path, strategy):
    short = training(steps=1, epochs=1)
    with pytest.raises(AssertionError, match=r"ranks ended with .*-15"):
        short.run(tmp_path, "tensorflow", strategy, fault=f"{FAULTS}:terminated")


@pytest.mark.parametrize("strategy", ["multiworker", "horovod"])
def test_ranks_that_stood_still_go_on(training, tmp_path, strategy):
    short = training(steps=1, epochs=1)
    got = short.run(tmp_path, "tensorflow", strategy, fault=f"{FAULTS}:standing_still")
    assert got.state.updates == 1
