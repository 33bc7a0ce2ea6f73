"""Keras on JAX trains as torch does: weights, statistics, momenta, losses, logits."""

import os
from pathlib import Path

import pytest

from ddl_tools.frameworks.weights import State
from tests.frameworks.equality import (
    RTOL,
    Result,
    Training,
    assert_equal,
    assert_fault_is_found,
    distance,
    interpreter,
    numbers,
)

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.extended]

FAULTS = "tests.frameworks.keras_faults"
LOOSE = 50  # tolerances: one ReLU that opens elsewhere is seen after a few steps
DEEP = {
    "alexnet": {"image_size": 224},
    "googlenet": {"image_size": 112},  # a window of each pooling begins at the edge
    "resnet50": {"image_size": 64, "local_batch_size": 8},
}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    interpreter("keras", "spmd")


@pytest.fixture(scope="module")
def training() -> Training:
    return Training({})


@pytest.fixture(scope="module")
def trained(training: Training, tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("trained")
    return training.run(folder, "keras", "spmd", fault=f"{FAULTS}:watched")


def test_two_ranks_train_as_torch_does(training: Training, trained: Result) -> None:
    assert_equal(trained, training.torch)


def test_one_rank_trains_as_torch_does(tmp_path: Path) -> None:
    training = Training({"decay_norm_bias": False}, workers=1)
    assert_equal(training.run(tmp_path, "keras", "single"), training.torch)


def test_a_run_goes_on_where_it_has_stopped(training: Training, tmp_path: Path) -> None:
    """Also in the random numbers of its dropouts."""

    def run(name: str, epochs: list[int], begin: State | None = None) -> Result:
        fault = f"{FAULTS}:with_dropout"
        folder = tmp_path / name
        return training.run(folder, "keras", "spmd", epochs=epochs, begin=begin, fault=fault)

    whole, first = run("whole", [0, 1]), run("first", [0])
    second = run("second", [1], first.state)
    assert second.state.updates == whole.state.updates
    assert distance(numbers(second.state), numbers(whole.state)) <= 1
    assert distance(numbers(whole.state), numbers(training.torch.state)) >= 5


@pytest.mark.parametrize(
    "fault",
    [
        "momentum_holds_the_rate",
        "decay_beside_the_momentum",
        "sum_of_the_gradients",
        "statistics_of_all_ranks",
        "biased_variance",
    ],
)
def test_a_planted_fault_is_found(training: Training, tmp_path: Path, fault: str) -> None:
    faulty = training.run(tmp_path, "keras", "spmd", fault=f"{FAULTS}:{fault}")
    assert_fault_is_found(faulty, training.torch)


def test_five_steps_of_resnet8_are_near(tmp_path: Path) -> None:
    training = Training({"model": "resnet8", "epochs": 1}, steps=5)
    got = training.run(tmp_path, "keras", "spmd")
    assert distance(numbers(got.state), numbers(training.torch.state)) <= LOOSE


@pytest.mark.parametrize("model", DEEP)
def test_the_first_loss_of_a_deep_network(model: str, tmp_path: Path) -> None:
    fields = {"model": model, "epochs": 1, "local_batch_size": 2, **DEEP[model]}
    training = Training(fields, steps=1, workers=1)
    got = training.run(tmp_path, "keras", "single")
    assert got.losses == pytest.approx(training.torch.losses, rel=RTOL)


def test_ranks_compute_on_cores_of_their_own(trained: Result) -> None:
    told = [one["told"] for one in trained.told]
    for one in told:
        assert one["threads"] == {"compute": 1}
        assert one["settings"]["cores_pinned"] == len(one["cores_of_xla"]) == 1
        assert one["communication"] == {"library": "gloo"}
    if len(os.sched_getaffinity(0)) > 1:
        assert told[0]["cores_of_xla"] != told[1]["cores_of_xla"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("told_to_end", r"-15\]"),
        ("raising", r", 1\](.|\n)*planted"),
        ("gone_before_close", r"\[1, 0\](.|\n)*rank 1 is gone"),
    ],
)
def test_a_rank_that_ends_holds_no_other(
    training: Training, tmp_path: Path, fault: str, said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        training.run(tmp_path, "keras", "spmd", epochs=[0], fault=f"{FAULTS}:{fault}")


def test_a_rank_may_be_late(training: Training, tmp_path: Path) -> None:
    training.run(tmp_path, "keras", "spmd", epochs=[0], fault=f"{FAULTS}:late")
