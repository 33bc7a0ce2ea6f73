"""Each framework trains as torch does: real ranks of its own Python, twenty steps."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from tests.frameworks.equality import (
    ADAMW,
    RTOL,
    STEPS,
    Result,
    apart,
    assert_equal,
    distance,
    interpreter,
    numbers,
    state_after,
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
# How its update is made does not depend on what carries the gradients.
BY_ADAMW = [(*pair, "adamw") for pair in (*ALONE, *OWN)]
RULES: dict[str, dict[str, Any]] = {"sgd": {}, "adamw": ADAMW}
DEEP = {
    "alexnet": {"image_size": 224},
    "googlenet": {"image_size": 112},  # a window of each pooling begins at the edge
}


@pytest.fixture(autouse=True)
def _installed(framework: str, strategy: str) -> None:
    interpreter(framework, strategy)


@pytest.mark.parametrize(
    ("framework", "strategy", "optimizer"),
    [*((*pair, "sgd") for pair in (*ALONE, *CARRIES)), *BY_ADAMW],
)
def test_twenty_steps_equal_those_of_torch(
    trained, tmp_path, framework, strategy, optimizer
) -> None:
    alone, rule = strategy == "single", RULES[optimizer]
    want = trained(1, decay_norm_bias=False, **rule) if alone else trained(**rule)
    got = want.run(tmp_path, framework, strategy)
    assert_equal(got, want.torch)
    assert got.state.updates == want.torch.state.updates
    settings = {"lr": want.rates[-1], "weight_decay": 0.01}
    settings |= {name: rule[name] for name in rule if "adam_" in name} or {"momentum": 0.9}
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


@pytest.mark.parametrize(
    ("framework", "strategy", "optimizer"),
    [*((*pair, "sgd") for pair in OWN), *((*pair, "adamw") for pair in ALONE)],
)
def test_a_resumed_training_equals_one_that_went_on(
    trained, tmp_path, framework, strategy, optimizer
) -> None:
    """Also in the random numbers of its dropouts."""
    want = trained(1 if strategy == "single" else 2, **RULES[optimizer])

    def run(epochs: list[int], **fields) -> Result:
        folder = tmp_path / str(epochs)
        return want.run(folder, framework, strategy, epochs=epochs, dropout=True, **fields)

    whole = run([0, 1])
    second = run([1], begin=state_after(tmp_path / "[0, 1]", 0))
    assert second.state.updates == whole.state.updates == 2 * STEPS
    assert second.losses == pytest.approx(whole.losses[1:], rel=RTOL)
    assert distance(numbers(second.state), numbers(whole.state)) <= 1
    assert distance(numbers(whole.state), numbers(want.torch.state)) >= 5


# Of several steps, one activation that changes its sign would move single values far.
@pytest.mark.parametrize(("framework", "strategy"), ALONE)
def test_the_first_step_of_resnet8(trained, tmp_path, framework, strategy) -> None:
    want = trained(1, 1, model="resnet8", epochs=1)
    got = want.run(tmp_path, framework, strategy)
    assert apart(got.state, want.torch.state, want.initial) <= 1e-3


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
