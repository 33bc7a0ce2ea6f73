"""Training with another library, at the grain of a whole step.

Nothing can be watched inside a step of a library; tests/frameworks prove what it does instead.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from ddl_core.config import RunSpec
from ddl_core.errors import broken
from ddl_core.fairness import check_agreement, state_sha256
from ddl_core.group import Group
from ddl_core.loop import mean_over_ranks
from ddl_core.timing import Clock, EpochTiming, HostTimestamps
from ddl_tools.frameworks.protocol import Floats, Library, State

Labels = npt.NDArray[np.int32]

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


class TrainState:
    """A library's network and update rule on one rank; a `Trainable` of `ddl_core/loop.py`.

    Parameters
    ----------
    spec : RunSpec
    library : Library
    group : Group
        Its ranks, for all numbers but the gradients.

    Attributes
    ----------
    latest : State
        The state after the last epoch, statistics averaged.
    """

    device_waits: int | None = None

    def __init__(self, spec: RunSpec, library: Library, group: Group) -> None:
        self.spec, self.library, self.group = spec, library, group
        self.timestamps = Timestamps(library)
        self.latest = library.state()
        self._close_steps = CLOSELY_WATCHED_STEPS
        self._rate, self._loss = math.nan, 0.0
        self._epochs = 0
        self._is_cold = True

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing: the library draws its random numbers by the number of the update."""

    @contextmanager
    def training(self, epoch: int, steps: int, images: int, clock: Clock) -> Iterator[None]:
        """Note whether the epoch counts."""
        self._is_cold = self._epochs < self.spec.cold_epochs(steps)
        self._epochs += 1
        yield

    def step(self, batches: Iterator[tuple[Floats, Labels]], rate: float, clock: Clock) -> None:
        """Do one update."""
        images, labels = next(batches)
        self._rate = rate
        self.library.step(images, labels, rate)
        if self._close_steps:  # reading the settings may wait for the device
            self._close_steps -= 1
            check_settings(self.spec, self.library.settings(), rate)

    def end_epoch(self, timing: EpochTiming) -> None:
        """Check the epoch; average the running statistics over ranks. A collective."""
        check_settings(self.spec, self.library.settings(), self._rate)
        if not self._is_cold:
            check_cores(self.spec, timing.cpu_s, timing.wall_s)
        self._loss = self.library.loss()
        self.latest = average_statistics(self.library, self.group)
        digest = state_sha256(self.latest.values)
        check_agreement(self.group, digest, "same weights on all ranks")

    def loss(self) -> float:
        """Return the sum of this rank's mean losses of the epoch."""
        return self._loss

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Begin with no scores."""
        self._totals = np.zeros(3)
        yield

    def evaluate(self, images: Floats, labels: Labels) -> None:
        """Add one batch to the scores."""
        logits = self.library.predict(filled(images, self.spec.local_batch_size))
        self._totals += scores(logits[: len(labels)], labels)

    def evaluate_nothing(self, steps: int) -> None:
        """Do nothing: predicting is local."""

    def scores(self) -> npt.NDArray[np.float64]:
        """Return sums over this rank's images: loss, first labels, labels among the first five."""
        return self._totals


def average_statistics(library: Library, group: Group) -> State:
    """Replace every running statistic by its mean over ranks; return the state. A collective.

    Once an epoch: it equals averaging after every step, see `ddl_core/batch_norm.py`.
    """
    state = library.state()
    names = [name for name in state.values if is_statistic(name)]
    if group.world_size == 1 or not names:
        return state
    whole = np.concatenate([state.values[name] for name in names])
    mean = mean_over_ranks(group, whole.astype(np.float64)).astype(np.float32)
    parts = np.split(mean, np.cumsum([len(state.values[name]) for name in names])[:-1])
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
