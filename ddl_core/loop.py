"""One epoch of training, evaluation or loading, for all strategies and frameworks.

A `Trainable` does the steps: `ddl_core/step.py` with PyTorch, `ddl_tools/frameworks/trainer.py`
with others.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ddl_core.config import RunSpec
from ddl_core.fairness import check_epoch, check_evaluation, count_corrupt, refuse_broken_data
from ddl_core.loaders.base import Loader
from ddl_core.schedules import learning_rate
from ddl_core.strategies import Group
from ddl_core.timing import Clock, EnergyMeter, EpochTiming, HostTimestamps

OnStep = Callable[[int, int], None]
"""Called after each step with the steps done and the steps of the epoch."""


def ignore(done: int, steps: int) -> None:
    """Do nothing after a step."""


@dataclass(frozen=True)
class EpochResult:
    """One epoch of training or one evaluation, over all ranks.

    `loss` is the mean over samples; `top1` and `top5` are shares of the images, from 0 to 1; `lr`
    is that of the last update. `precise_bn_loss` and `precise_bn_top1` are of a second evaluation,
    see `RunSpec.precise_bn`. `ids_sha256` is a hash of the set of images used, None for synthetic
    ones. `device_waits` counts the strategy's own device synchronisations on this rank, None for a
    compiled network.
    """

    timing: EpochTiming
    steps: int
    samples: int
    corrupt_images: int
    loss: float | None = None
    top1: float | None = None
    top5: float | None = None
    precise_bn_loss: float | None = None
    precise_bn_top1: float | None = None
    lr: float | None = None
    ids_sha256: str | None = None
    device_waits: int | None = None


class Trainable(Protocol):
    """Network, optimiser and loss of a framework on one rank."""

    spec: RunSpec

    @property
    def device_waits(self) -> int | None:
        """The strategy's own device synchronisations in the last epoch."""

    @property
    def group(self) -> Group:
        """The ranks that train together."""

    @property
    def timestamps(self) -> HostTimestamps:
        """Timestamps of the device."""

    def begin_epoch(self, epoch: int) -> None:
        """Prepare to train, before the timed window."""

    def training(
        self, epoch: int, steps: int, images: int, clock: Clock
    ) -> AbstractContextManager[None]:
        """Return a context for the steps of an epoch over a training set of `images` images."""

    def step(self, batches: Iterator[tuple[Any, Any]], rate: float, clock: Clock) -> None:
        """Do one update with the next batches; wait for nothing."""

    def end_epoch(self, timing: EpochTiming) -> None:
        """Average the running statistics over ranks; check the epoch. A collective."""

    def loss(self) -> float:
        """Return the sum of this rank's mean losses of all micro-batches of the epoch."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context in which nothing is trained."""

    def evaluate(self, images: Any, labels: Any) -> None:
        """Add one batch to the scores; wait for nothing."""

    def evaluate_nothing(self, steps: int) -> None:
        """Take part in the forward passes of ranks that have so many batches more."""

    def scores(self) -> npt.NDArray[np.float64]:
        """Return this rank's sums: loss, first labels, labels among the first five."""


class EpochLoop:
    """Trains and evaluates a `Trainable` epoch by epoch; `meter` measures the energy."""

    def __init__(self, state: Trainable, meter: EnergyMeter | None = None) -> None:
        self.state, self.spec, self.group = state, state.spec, state.group
        self._meter = meter

    def train(
        self, loader: Loader, epoch: int, on_step: OnStep = ignore, annotate: bool = False
    ) -> EpochResult:
        """Train on every batch of `loader` once; `annotate` shows the clock's marks to a profiler.

        `DataError` if over 1 % of the images are unreadable, `FairnessError` for a broken rule.
        """
        spec, state = self.spec, self.state
        steps = len(loader) // spec.accumulation
        images_per_epoch = steps * spec.global_batch_size
        rate = math.nan

        state.begin_epoch(epoch)
        loader.set_epoch(epoch)
        clock = self._clock(annotate)
        clock.start()
        batches = clock.batches(iter(loader))
        with state.training(epoch, steps, loader.images, clock):
            for step in range(steps):
                seen = epoch * images_per_epoch + step * spec.global_batch_size
                rate = learning_rate(spec, seen, images_per_epoch)
                state.step(batches, rate, clock)
                clock.step_done()
                on_step(step + 1, steps)
        timing = clock.stop()

        state.end_epoch(timing)
        (loss_sum,) = self.group.reduce([state.loss()]).tolist()
        return _trained(
            spec,
            self.group,
            loader,
            epoch,
            timing,
            loss=loss_sum / (steps * spec.virtual_workers),
            lr=rate,
            device_waits=state.device_waits,
        )

    def evaluate(self, loader: Loader, on_step: OnStep = ignore) -> EpochResult:
        """Evaluate on every image of `loader` once; ranks may have different numbers of batches.

        Where weights are sharded, a forward pass is a collective, and ranks with fewer batches take
        part in those of the others.
        """
        state, group = self.state, self.group
        busiest = int(group.reduce(len(loader), "max"))
        own = 0  # counted on the host: reading it from a GPU would wait
        with state.evaluating():
            loader.set_epoch(0)
            clock = self._clock()
            clock.start()
            for step, (images, labels) in enumerate(clock.batches(iter(loader)), start=1):
                state.evaluate(images, labels)
                own += len(labels)
                clock.step_done()
                on_step(step, len(loader))
            state.evaluate_nothing(busiest - len(loader))
            timing = clock.stop()

        loss, top1, top5, samples = group.reduce(np.append(state.scores(), own)).tolist()
        corrupt = count_corrupt(group, loader)
        return EpochResult(
            timing=timing,
            steps=busiest,
            samples=int(samples),
            corrupt_images=corrupt,
            loss=loss / samples,
            top1=top1 / samples,
            top5=top5 / samples,
            ids_sha256=check_evaluation(group, loader),
        )

    def _clock(self, annotate: bool = False) -> Clock:
        self.state.timestamps.annotate = annotate
        return Clock(self.group, self.state.timestamps, self._meter)


def load_epoch(
    spec: RunSpec, loader: Loader, epoch: int, clock: Clock, on_step: OnStep = ignore
) -> EpochResult:
    """Fetch every batch of `loader` once and train nothing: the loader's own limit."""
    steps = len(loader) // spec.accumulation
    loader.set_epoch(epoch)
    clock.start()
    batches = clock.batches(iter(loader))
    for step in range(steps):
        for _ in range(spec.accumulation):
            next(batches)
        clock.step_done()
        on_step(step + 1, steps)
    return _trained(spec, clock.group, loader, epoch, clock.stop())


def _trained(
    spec: RunSpec, group: Group, loader: Loader, epoch: int, timing: EpochTiming, **facts: Any
) -> EpochResult:
    """Check the images of an epoch over the training set; return its result."""
    steps = len(loader) // spec.accumulation
    samples = steps * spec.global_batch_size
    corrupt = count_corrupt(group, loader)
    refuse_broken_data(corrupt, samples)
    return EpochResult(
        timing=timing,
        steps=steps,
        samples=samples,
        corrupt_images=corrupt,
        ids_sha256=check_epoch(spec, group, loader, epoch),
        **facts,
    )


def mean_over_ranks(group: Group, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the mean of each value over ranks. A collective.

    A value that is equal on all ranks stays as it is: rounding would let a constant drift.
    """
    low, high = group.reduce(values, "min"), group.reduce(values, "max")
    mean: npt.NDArray[Any] = group.reduce(values) / values.dtype.type(group.world_size)
    return np.where(low == high, low, mean)
