"""The loop of the libraries: what `train/loop.py` does for torch, at the grain of a whole step.

Same order of images, same rate at every update, same clock and rules; what a library does inside a
step cannot be watched, and is proved by tests/libraries instead.
"""

import math

import numpy as np
import numpy.typing as npt

from ddl_core.errors import broken
from ddl_core.libraries.protocol import Batches, Floats, Library, State
from ddl_core.rank.energy import Meter
from ddl_core.rank.fairness import (
    check_agreement,
    check_epoch,
    check_evaluation,
    count_corrupt,
    refuse_broken_data,
)
from ddl_core.rank.group import Group
from ddl_core.rank.outcome import OnStep, Outcome
from ddl_core.rank.state import state_sha256
from ddl_core.rank.timing import Clock, HostTimestamps
from ddl_core.spec.run import RunSpec
from ddl_core.spec.schedules import learning_rate

CLOSELY_WATCHED_STEPS = 3  # of a start: they lie in a cold epoch
SINGLE = 1e-6  # relative: a number that went through float32
BUSY = 1.1  # a processor's clock against that of the wall, and what the system does for a rank


class Timestamps(HostTimestamps):
    """Timestamps of the host: these frameworks offer none of the device."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.has_step_times = library.synchronous

    def wait(self) -> None:
        """Wait for the device."""
        self._library.wait()


class Loop:
    """Trains and evaluates on one rank.

    Parameters
    ----------
    spec : RunSpec
    library : Library
    group : Group
        Its ranks, for all numbers but the gradients.
    meter : Meter or None
        Measures energy.
    """

    def __init__(
        self, spec: RunSpec, library: Library, group: Group, meter: Meter | None = None
    ) -> None:
        self.spec, self.library, self.group = spec, library, group
        self._meter = meter
        self._close_steps = CLOSELY_WATCHED_STEPS

    def train_one_epoch(
        self, source: Batches, epoch: int, on_step: OnStep, cold: bool
    ) -> tuple[Outcome, State]:
        """Train on every batch of `source` once; return what came of it, and the state after it.

        Raises
        ------
        DataError
            If more than 1 % of the epoch's images are unreadable.
        FairnessError
            If the epoch was not done as every library must do it.
        """
        spec, library, group = self.spec, self.library, self.group
        steps, rate = len(source), math.nan
        images_per_epoch = steps * spec.global_batch_size
        source.set_epoch(epoch)
        clock = Clock(group, Timestamps(library), self._meter)
        clock.start()
        batches = clock.batches(iter(source))
        for step in range(steps):
            images, labels = next(batches)
            seen = epoch * images_per_epoch + step * spec.global_batch_size
            rate = learning_rate(spec, seen, images_per_epoch)
            library.step(images, labels, rate)
            if self._close_steps:  # reading the settings may wait for the device
                self._close_steps -= 1
                check_settings(spec, library.settings(), rate)
            clock.step_done()
            on_step(step + 1, steps)
        window = clock.stop()

        check_settings(spec, library.settings(), rate)
        if not cold:
            check_cores(spec, window.cpu_s, window.wall_s)
        corrupt = count_corrupt(group, source)
        refuse_broken_data(corrupt, images_per_epoch)
        ids = check_epoch(spec, group, source, epoch)
        loss = float(group.reduce(library.loss())) / (steps * group.world_size)
        state = average_statistics(library, group)
        check_agreement(group, state_sha256(state.values), "same weights on all ranks")
        return Outcome(
            window=window,
            steps=steps,
            samples=images_per_epoch,
            corrupt_images=corrupt,
            loss=loss,
            lr=rate,
            ids_sha256=ids,
        ), state

    def evaluate(self, source: Batches, on_step: OnStep) -> Outcome:
        """Evaluate on every image of `source` once. No collective runs between batches."""
        library, group = self.library, self.group
        totals = np.zeros(3)
        own = 0
        source.set_epoch(0)
        clock = Clock(group, Timestamps(library), self._meter)
        clock.start()
        for step, (images, labels) in enumerate(clock.batches(iter(source)), start=1):
            logits = library.predict(filled(images, self.spec.local_batch_size))
            totals += scores(logits[: len(labels)], labels)
            own += len(labels)
            clock.step_done()
            on_step(step, len(source))
        window = clock.stop()

        steps = int(group.reduce(len(source), "max"))
        corrupt = count_corrupt(group, source)
        loss, top1, top5, samples = group.reduce(np.append(totals, own)).tolist()
        return Outcome(
            window=window,
            steps=steps,
            samples=int(samples),
            corrupt_images=corrupt,
            loss=loss / samples,
            top1=top1 / samples,
            top5=top5 / samples,
            ids_sha256=check_evaluation(group, source),
        )


def average_statistics(library: Library, group: Group) -> State:
    """Replace every running statistic by its mean over ranks; return the state. A collective.

    Once an epoch: it equals averaging after every step, see `train/batch_statistics.py`.
    """
    state = library.state()
    names = [name for name in state.values if is_statistic(name)]
    if group.world_size == 1 or not names:
        return state
    whole = np.concatenate([state.values[name] for name in names])
    mean = group.reduce(whole.astype(np.float64)) / group.world_size
    ends = np.cumsum([len(state.values[name]) for name in names])[:-1]
    parts = np.split(mean.astype(np.float32), ends)
    state.values.update(zip(names, parts, strict=True))
    library.load(state)
    return state


def is_statistic(name: str) -> bool:
    """Say whether a value is a running statistic and no parameter."""
    return name.rpartition(".")[2] in ("running_mean", "running_var")


def filled(images: Floats, number: int) -> Floats:
    """Return a batch of `number` images, the last ones empty: one shape, compiled once."""
    missing = number - len(images)
    return np.pad(images, [(0, missing), (0, 0), (0, 0), (0, 0)]) if missing else images


def scores(logits: Floats, labels: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Return the sum of the losses, and how many labels are first and among the first five.

    Parameters
    ----------
    logits : (n, classes)
    labels : (n,)
    """
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    right = np.take_along_axis(wide, labels[:, None].astype(np.int64), axis=1)
    loss = np.log(np.exp(wide).sum(axis=1)) - right[:, 0]
    better = (wide > right).sum(axis=1)
    return np.array([loss.sum(), (better < 1).sum(), (better < 5).sum()])


def check_settings(spec: RunSpec, used: dict[str, float], rate: float) -> None:
    """Check what the last update was made with.

    Raises
    ------
    FairnessError
        If it is not what the run asks for.
    """
    wanted = {"lr": rate, "momentum": spec.momentum, "weight_decay": spec.weight_decay}
    for name, value in wanted.items():
        if not math.isclose(used[name], value, rel_tol=SINGLE):
            raise broken(
                "same learning rate and update rule",
                f"the update was made with {name} = {used[name]}, not {value}",
            )


def check_cores(spec: RunSpec, cpu_s: float, wall_s: float) -> None:
    """Check that the ranks of a window computed with no more cores than the run gives them.

    One core more for each rank: what sends its gradients may wait for them at work.

    Raises
    ------
    FairnessError
        If a library had threads of its own.
    """
    cores = spec.world_size * (spec.cpu_threads + spec.loader_workers + 1)
    if cpu_s > BUSY * wall_s * cores:
        raise broken(
            "no more cores than asked for",
            f"{cpu_s:.1f} s of processor in {wall_s:.1f} s, on more than the {cores} cores of "
            f"{spec.world_size} ranks with cpu_threads = {spec.cpu_threads}, loader_workers = "
            f"{spec.loader_workers} and one that communicates",
        )
