"""Equality of the frameworks: torch's `single` with a virtual worker for each rank.

The same batches, rates and initial weights; torch trains by the project's own loop, a framework by
its own steps in as many processes as the run has ranks.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddl_core import registry
from ddl_core.config import RunSpec
from ddl_core.errors import NotInstalledError
from ddl_core.loop import EpochLoop
from ddl_core.optim import make_optimizer
from ddl_core.schedules import learning_rate
from ddl_core.step import TrainState
from ddl_core.strategies.base import Single
from ddl_tools.frameworks.weights import State, load, save
from ddl_tools.launch.interpreters import python_of, require
from ddl_tools.processes import end, import_path, start
from ddl_tools.rank.weights import values
from tests.frameworks.driver import TINY

# Ten times what was seen between any two frameworks; wrong rules are a thousand times as far.
RTOL, ATOL = 1e-4, 1e-5

PATIENCE_S = 200.0  # two ranks import and compile on a busy machine

COMMON: dict[str, Any] = {
    "model": "tiny",
    "image_size": 32,
    "classes": 10,
    "local_batch_size": 8,
    "epochs": 2,
    "warmup_epochs": 1,
    "schedule": "cosine",
    "base_lr": 0.025,
    "weight_decay": 0.01,
    "label_smoothing": 0.1,
    "device": "cpu",
}
STEPS = 10  # of each of two epochs

# The gradient of the first shift is rounding alone: a smaller eps would make steps of it.
ADAMW: dict[str, Any] = {
    "optimizer": "adamw",
    "base_lr": 0.005,
    "adam_beta1": 0.8,
    "adam_beta2": 0.95,
    "adam_eps": 0.01,
}
MOMENTS = {"sgd": ["momentum_buffer"], "adamw": ["exp_avg", "exp_avg_sq"]}


def tiny(classes: int) -> nn.Module:
    """Return the network of that name in `driver.py`, without its dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, bias=False),
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 16, 3, stride=2, bias=False),
        nn.BatchNorm2d(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, classes),
    )


@dataclass
class Result:
    """What a training left: its state, each epoch's mean loss, logits of the first batch by rank.

    `own` is each rank's state before the statistics were averaged.
    """

    state: State
    losses: list[float]
    logits: np.ndarray
    own: list[State]
    facts: list[dict[str, Any]]


@dataclass
class Training:
    """Batches (steps, workers, n, 3, s, s), a network's initial weights and what torch makes of it.

    Parameters
    ----------
    fields
        Of the run, beside `COMMON`.
    steps
        Of an epoch.
    workers
        Virtual ones of torch, ranks of a framework.
    """

    fields: dict[str, Any]
    steps: int = STEPS
    workers: int = 2

    def __post_init__(self) -> None:
        spec = self.spec("torch", "single", accumulation=self.workers)
        shape = (spec.epochs * self.steps, self.workers, spec.local_batch_size)
        draw = np.random.default_rng(7)
        self.labels = draw.integers(spec.classes, size=shape)
        self.images = draw.standard_normal((*shape, 3, spec.image_size, spec.image_size), "f4")
        self.images += (self.labels * 2 / spec.classes - 1).astype("f4")[..., None, None, None]
        per_epoch = self.steps * spec.global_batch_size
        self.rates = [
            learning_rate(spec, step * spec.global_batch_size, per_epoch)
            for step in range(len(self.images))
        ]
        torch.manual_seed(0)
        make = tiny if spec.model == "tiny" else registry.resolve("model", spec.model)
        self._network = make(spec.classes)
        for module in self._network.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0  # each framework draws its own numbers
        self.initial = State(_floats(self._network))
        self.torch = self._by_torch(spec)

    def spec(self, framework: str, strategy: str, **fields: Any) -> RunSpec:
        given = {**COMMON, **self.fields, **fields, "framework": framework, "strategy": strategy}
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(registry.MODELS, "tiny", TINY)
            return RunSpec(**given)

    def _by_torch(self, spec: RunSpec) -> Result:
        network = self._network
        subject = TrainState(spec, Single(spec), network, make_optimizer(spec, network))
        batches = Batches(self, spec.local_batch_size)
        outcomes = [
            EpochLoop(subject).train(batches, epoch, lambda *_: None)
            for epoch in range(spec.epochs)
        ]
        network.eval()
        with torch.inference_mode():
            logits = [network(torch.from_numpy(images)).numpy() for images in self.images[0]]
        moments = (
            {
                name: subject.optimizer.state[parameter][of_torch].numpy().copy()
                for name, parameter in network.named_parameters()
            }
            for of_torch in MOMENTS[spec.optimizer]
        )
        state = State(_floats(network), next(moments), spec.epochs * self.steps, *moments)
        return Result(state, [one.loss or 0.0 for one in outcomes], np.stack(logits), [], [])

    def run(
        self,
        folder: Path,
        framework: str,
        strategy: str,
        *,
        epochs: Sequence[int] = (0, 1),
        begin: State | None = None,
        dropout: bool = False,
        fault: str = "",
    ) -> Result:
        """Train `epochs` with `framework`, each worker in a process of its own, from `begin` on.

        Parameters
        ----------
        folder
            An empty one.
        fault
            What rank 1 meets and before which step, as in ``"killed 1"``; see `driver.suffer`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        spec = self.spec(framework, strategy, gpus_per_node=self.workers)
        case = {
            "spec": spec.model_dump(mode="json"),
            "steps": self.steps,
            "rates": self.rates,
            "epochs": [epoch for epoch in epochs if epoch < spec.epochs],
            "dropout": dropout,
            "fault": fault,
        }
        (folder / "case.json").write_text(json.dumps(case))
        np.savez(folder / "batches.npz", images=self.images, labels=self.labels)
        save(folder / "begin.npz", "", begin or self.initial)
        arguments = ["-m", "tests.frameworks.driver", str(folder)]
        start_ranks(interpreter(framework, strategy), self.workers, arguments, folder)
        return _left(folder, self.workers, case["epochs"][-1])


class Batches:
    """Training data as the loop takes them: the micro-batches of an epoch, worker by worker."""

    classes, fingerprint, corrupt_images, seen = 10, None, 0, None
    own_order = False

    def __init__(self, training: Training, size: int) -> None:
        self._training, self._epoch = training, 0
        self.images = training.steps * training.workers * size

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return self._training.steps * self._training.workers

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        one = self._training
        for step in range(self._epoch * one.steps, (self._epoch + 1) * one.steps):
            yield from zip(
                torch.from_numpy(one.images[step]), torch.from_numpy(one.labels[step]), strict=True
            )


def _floats(network: nn.Module) -> dict[str, Any]:
    return {name: value.copy() for name, value in values(network.state_dict()).items()}


def interpreter(framework: str, strategy: str) -> str:
    """Return its Python; skip the test where its environment was not made."""
    try:
        require(framework, strategy)
        return str(python_of(framework))
    except NotInstalledError as error:
        pytest.skip(str(error))


def start_ranks(python: str, ranks: int, arguments: list[str], folder: Path) -> None:
    """Run a framework's Python with `arguments` in so many processes; fail with what they say."""
    started: list[Popen[bytes]] = []
    try:
        for rank in range(ranks):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "OMP_NUM_THREADS": 1}
            environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
            environment["PYTHONPATH"] = import_path()
            log = folder / f"rank.{rank}.log"
            started.append(start([python, *arguments], log=log, environment=environment))
        _all_end_well(started, folder)
    finally:
        end(*started)
        for one in started:
            one.wait()


def _all_end_well(started: list[Popen[bytes]], folder: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while None in (codes := [one.poll() for one in started]):
        if time.monotonic() > until or any(codes):
            break
        time.sleep(0.1)
    if any(codes) or None in codes:
        logs = "\n".join(one.read_text()[-3000:] for one in sorted(folder.glob("rank.*.log")))
        raise AssertionError(f"ranks ended with {codes} (None: too late)\n{logs}")


def state_after(folder: Path, epoch: int, rank: int = 0) -> State:
    """Return the state that a training in `folder` had after an epoch."""
    return load(folder / f"epoch.{epoch}.{rank}.npz", "")[0]


def _left(folder: Path, ranks: int, epoch: int) -> Result:
    states = [state_after(folder, epoch, rank) for rank in range(ranks)]
    facts = [json.loads((folder / f"rank.{rank}.json").read_text()) for rank in range(ranks)]
    for other in states[1:]:  # after the mean of the statistics all ranks hold the same
        for name, value in numbers(states[0]).items():
            assert np.array_equal(numbers(other)[name], value), f"{name} differs between ranks"
    return Result(
        state=states[0],
        losses=[float(loss) for loss in np.mean([one["losses"] for one in facts], axis=0)],
        logits=np.stack([np.load(folder / f"logits.{rank}.npy") for rank in range(ranks)]),
        own=[load(folder / f"own.{rank}.npz", "")[0] for rank in range(ranks)],
        facts=facts,
    )


def numbers(state: State) -> dict[str, np.ndarray]:
    """Return weights, running statistics and moments by name."""
    momentum = {f"momentum {name}": one for name, one in state.momentum.items()}
    return state.values | momentum | {f"squares {name}": one for name, one in state.squares.items()}


def distance(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> float:
    """Return how far the worst value is off, in tolerances; infinite where a name is missing."""
    if got.keys() != want.keys() or any(got[name].shape != want[name].shape for name in want):
        return float("inf")
    worst = [np.max(np.abs(got[n] - one) / (ATOL + RTOL * np.abs(one))) for n, one in want.items()]
    return float(np.max(worst))  # NaN if one is


def apart(got: State, want: State, initial: State) -> float:
    """Return the error of the change since `initial`, as a share of it, of the worst tensor.

    For networks with ReLU: one activation that changes its sign moves single values far.
    """
    errors = [
        np.linalg.norm(got.values[name] - one) / np.linalg.norm(one - initial.values[name])
        for name, one in want.values.items()
    ]
    return float(np.max(errors))


def assert_equal(got: Result, want: Result) -> None:
    for kind, one, other in _pairs(got, want):
        assert list(one) == list(other), f"names or order of {kind} differ"
        off = distance(one, other)
        assert off <= 1, f"{kind} is {off:.1e} tolerances off"


def _pairs(got: Result, want: Result) -> Iterator[tuple[str, Any, Any]]:
    yield "state", numbers(got.state), numbers(want.state)
    yield "loss", {"loss": np.array(got.losses)}, {"loss": np.array(want.losses)}
    yield "logits", {"logits": got.logits}, {"logits": want.logits}
