"""What tests of two ranks of torch share: their data, their start, the process they must equal."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddl_core.activations import checkpoint_activations
from ddl_core.config import RunSpec
from ddl_core.device import compile_network
from ddl_core.loaders.base import Loader
from ddl_core.loop import EpochLoop
from ddl_core.optim import make_optimizer
from ddl_core.step import TrainState
from ddl_core.strategies.base import Single
from ddl_tools.processes import import_path
from tests.closeness import assert_far, assert_near, falls
from tests.planted import tiny

RANKS = 2
STEPS = 10  # of each of two epochs
BATCH = 4
BASE_LR = 0.01  # at which it learns: what rounding does stays as small as it is

Fields = dict[str, Any]


class Batches(Loader):
    """Micro-batches of one rank: number m of step s belongs to virtual worker rank * a + m."""

    classes = 3

    def __init__(self, rank: int, workers: int, accumulation: int) -> None:
        self.images = STEPS * workers * BATCH
        self._mine = [
            step * workers + rank * accumulation + micro
            for step in range(STEPS)
            for micro in range(accumulation)
        ]
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._mine)

    def __iter__(self):
        for number in self._mine:
            generator = torch.Generator().manual_seed(1000 * self._epoch + number)
            images = torch.randn(BATCH, 3, 16, 16, generator=generator)
            labels = torch.randint(3, (BATCH,), generator=generator)
            images[torch.arange(BATCH), labels] += 1  # a colour to learn
            yield images, labels


def size(fields: Fields) -> int:
    """Return the ranks of a case: two, or two groups of so many as share one copy."""
    return RANKS * fields.get("fsdp_shards", 1)


def network() -> nn.Module:
    """Make a network with batch statistics, and an odd number of parameters to share."""
    torch.manual_seed(0)
    return tiny(3)


def spec(strategy: str, **fields) -> RunSpec:
    common = {"classes": 3, "local_batch_size": BATCH, "epochs": 2, "warmup_epochs": 0.5}
    common |= {"base_lr": BASE_LR, "schedule": "constant"}
    return RunSpec(
        **{**common, "strategy": strategy, "weight_decay": 0.01, "device": "cpu", **fields}
    )


def build(run: RunSpec, group, model: nn.Module) -> TrainState:
    """Make the subject; with fp16 its scale is one that no step of this network overflows."""
    if run.compile:
        compile_network(model, by_block=group.is_sharded or run.activation_checkpointing)
    if run.activation_checkpointing:
        checkpoint_activations(model)
    if run.channels_last:
        model.to(memory_format=torch.channels_last)
    subject = TrainState(run, group, model, make_optimizer(run, model))
    if subject.scaler.is_enabled():
        subject.scaler = torch.amp.GradScaler("cpu", init_scale=1024)
    return subject


def train(subject: TrainState, batches: Batches, epochs=(0, 1)) -> list[float]:
    return [EpochLoop(subject).train(batches, epoch).loss for epoch in epochs]


def result(subject: TrainState, losses: list[float]) -> dict:
    full = subject.strategy.full_state(subject.network, subject.optimizer)
    weights = {name: value.clone() for name, value in full["model"].items()}
    return {"losses": losses, "weights": weights, "optimizer": full["optimizer"]}


def start(cases: list[Fields], out: Path, **environment: str) -> str:
    """Train cases of one strategy on two ranks, with warnings as errors; return what they said."""
    launch = [sys.executable, "-W", "error", "-m", "torch.distributed.run", "--standalone"]
    ranks = ["--nproc-per-node", str(size(cases[0])), "-m", "tests.core.strategies.ranks"]
    done = subprocess.run(
        [*launch, *ranks, json.dumps(cases), str(out)],
        env={**os.environ, "PYTHONPATH": import_path(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def left(out: Path, number: int) -> list[dict]:
    """Return what the ranks left of a case, by its place among those that were started."""
    found = sorted(out.glob(f"{number}.rank*.pt"))
    return [torch.load(one, weights_only=True) for one in found]


def single(fields: Fields, **unfair: Any) -> dict:
    """Train one process that accumulates what the ranks do, and that nothing compiles."""
    of_one = ("deepspeed_", "fsdp_", "strategy", "activation_checkpointing", "compile")
    shared = {k: v for k, v in fields.items() if not k.startswith(of_one)}
    accumulation = size(fields) * shared.pop("accumulation", 1)
    run = spec("single", accumulation=accumulation, **shared, **unfair)
    subject = build(run, Single(run), network())
    return result(subject, train(subject, Batches(0, accumulation, accumulation)))


def held(of: dict) -> dict[str, torch.Tensor]:
    """Return those of `numbers` that a rank holds: rank 0 alone keeps what was gathered."""
    return {name: value for name, value in numbers(of).items() if value.numel()}


def numbers(of: dict) -> dict[str, torch.Tensor]:
    """Return parameters, statistics, momenta and what else the optimiser keeps."""
    # num_batches_tracked counts the forward passes of one rank.
    weights = {name: value for name, value in of["weights"].items() if value.is_floating_point()}
    return weights | kept(of["optimizer"])


def kept(optimizer: dict) -> dict[str, torch.Tensor]:
    """Return the state of all parameters by name and number of the parameter."""
    return {
        f"{name} {index}": value
        for index, state in optimizer["state"].items()
        for name, value in state.items()
        if value is not None
    }


def momenta(of: dict) -> dict[str, torch.Tensor]:
    """Return those that have the size of their parameter, so not the number of updates."""
    return {
        name: value for name, value in kept(of["optimizer"]).items() if not name.startswith("step ")
    }


def check_like_one_process(ranks: list[dict], fields: Fields) -> None:
    """Check that two ranks trained like one process that accumulates."""
    want, (of_losses, of_state) = single(fields), tolerances(fields)
    assert falls(want["losses"])
    for rank in ranks:
        got = rank["undisturbed"]
        assert_near(got["losses"], want["losses"], of_losses)
        assert_near(held(got), {name: numbers(want)[name] for name in held(got)}, of_state)
        rates = [one["optimizer"]["param_groups"][0]["lr"] for one in (got, want)]
        assert rates[0] == rates[1]
    assert held(ranks[0]["undisturbed"]).keys() == numbers(want).keys()


def check_unfair_is_far(ranks: list[dict], fields: Fields) -> None:
    """Check that a rate one percent higher is seen."""
    unfair, (of_losses, of_state) = single(fields, base_lr=1.01 * BASE_LR), tolerances(fields)
    got = ranks[0]["undisturbed"]
    assert_far(unfair["losses"], got["losses"], of_losses)
    assert_far(numbers(unfair), numbers(got), of_state)


def check_resumed(ranks: list[dict]) -> None:
    """Check that a run that went on from a checkpoint has the bits of one that was not stopped."""
    for rank in ranks:
        want, got = rank["undisturbed"], rank["resumed"]
        assert got["losses"] == want["losses"]
        for name, value in want["weights"].items():
            assert torch.equal(got["weights"][name], value), name


def tolerances(fields: Fields) -> tuple[float, float]:
    """Return those of losses and state; docs/contributing/test-tolerances.md explains them."""
    half = fields.get("precision", "fp32") != "fp32"
    return (5e-5, 1e-3) if half else (1e-5, 1e-4)
