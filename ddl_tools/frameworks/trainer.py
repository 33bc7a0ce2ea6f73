"""Training with TensorFlow, Keras or MXNet on one rank: the same epochs, checks and results.

A step cannot be watched from inside, as `ddl_core/step.py` watches PyTorch's; tests/frameworks
compare its results with PyTorch's instead.
"""

import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_core.config import RunSpec
from ddl_core.data.sampling import Split
from ddl_core.errors import broken
from ddl_core.fairness import check_agreement
from ddl_core.loaders.base import Loader
from ddl_core.loop import EpochLoop, EpochResult, OnStep, mean_over_ranks
from ddl_core.registry import resolve
from ddl_core.strategies import Group
from ddl_core.timing import Clock, EnergyMeter, EpochTiming, HostTimestamps
from ddl_tools.frameworks import weights
from ddl_tools.frameworks.batches import NativeArrays, SyntheticArrays
from ddl_tools.frameworks.protocol import Framework, rule_of
from ddl_tools.frameworks.rendezvous import ControlGroup
from ddl_tools.frameworks.weights import Floats, State, is_statistic
from ddl_tools.rank.weights import state_sha256
from ddl_tools.records.paths import RunFiles

LOADERS = {"native": NativeArrays, "synthetic": SyntheticArrays}
# A GPU's energy is read by its UUID, which these frameworks do not tell.
NO_ENERGY = "energy of a GPU is read for framework 'torch' alone"
CLOSELY_WATCHED_STEPS = 3  # of a start: they lie in a cold epoch
SINGLE = 1e-6  # relative: a number that went through float32
BUSY = 1.1  # a processor's clock against that of the wall, and what the system does for a rank

Labels = npt.NDArray[np.int32]


class FrameworkTrainer:
    """The methods of `RecordedTrainer`; the ranks meet through the file `rendezvous`."""

    def __init__(self, spec: RunSpec, data_dir: Path | None, rendezvous: Path) -> None:
        self.spec, self._data_dir = spec, data_dir
        self.group = ControlGroup(spec, rendezvous)
        self.meter: EnergyMeter | None = None
        self._framework: Framework | None = None
        self._loaders: dict[Split, Loader] = {}

    @property
    def framework(self) -> Framework:
        """The framework; first use joins the group of the run's strategy."""
        if self._framework is None:
            self._framework = resolve("framework", self.spec.framework)(self.spec, self.group)
        assert self._framework is not None
        return self._framework

    def energy(self) -> tuple[str | None, str | None]:
        """Return no GPU; and why no energy can be read where there is one."""
        return None, None if self.framework.device == "cpu" else NO_ENERGY

    def loader(self, split: Split) -> Loader:
        """Return this rank's share of a split; later calls return the same."""
        if split not in self._loaders:
            make, group = LOADERS[self.spec.loader], self.group
            place = (split, group.rank, group.world_size)
            self._loaders[split] = make(self.spec, self._data_dir, *place, self.framework.layout)
        return self._loaders[split]

    def build(self, directory: Path) -> str:
        """Load the weights that torch has drawn; return their hash. A collective."""
        initial, _ = weights.load(RunFiles(directory).initial, self.spec.run_id)
        digest = state_sha256(initial.values)
        check_agreement(self.group, digest, "same initial weights")
        self.framework.load(initial)
        self._state = FrameworkState(self.spec, self.framework, self.group)
        return digest

    def resume(self, directory: Path) -> int:
        """Continue from the checkpoint in a folder if there is one; return the epochs done."""
        files = RunFiles(directory)
        if not files.state.exists():
            return 0
        kept, epochs_done = weights.load(files.state, self.spec.run_id)
        self.framework.load(kept)
        self._state = FrameworkState(self.spec, self.framework, self.group)
        return epochs_done

    def train_epoch(self, epoch: int, on_step: OnStep) -> EpochResult:
        """Train on every image of the training set once."""
        return EpochLoop(self._state, self.meter).train(self.loader("train"), epoch, on_step)

    def load_epoch(self, epoch: int, on_step: OnStep) -> EpochResult:
        """Refuse: a spec asks for it with torch only."""
        raise NotImplementedError(self.spec.framework)

    def evaluate(self, on_step: OnStep) -> EpochResult:
        """Evaluate on every image of the validation set once."""
        return EpochLoop(self._state, self.meter).evaluate(self.loader("eval"), on_step)

    def peak_memory(self) -> int | None:
        """Return None: these frameworks do not tell."""
        return None

    def save(self, directory: Path, epochs_done: int) -> None:
        """Write a checkpoint into a folder."""
        if self.group.rank == 0:
            state = RunFiles(directory).state
            weights.save(state, self.spec.run_id, self._state.latest, epochs_done)

    def weights_sha256(self) -> str:
        """Return a hash over all parameters and statistics."""
        return state_sha256(self._state.latest.values)

    def describe(self) -> dict[str, Any]:
        """Return facts of device, settings and communication, for the record."""
        framework, facts = self.framework, self.framework.describe()
        return {
            "device": framework.device,
            "accelerator": facts.get("accelerator"),
            "architecture": platform.machine(),
            "threads": facts["threads"],
            "settings": {"layout": framework.layout, **facts["settings"]},
            "communication": facts["communication"],
        }

    def close(self) -> None:
        """Leave the group."""
        if self._framework:
            self._framework.close()
        self.group.close()


class Timestamps(HostTimestamps):
    """Timestamps of the host: these frameworks offer none of the device."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self.has_step_times = framework.synchronous

    def wait(self) -> None:
        """Wait for the device."""
        self._framework.wait()


class FrameworkState:
    """A framework's network and update rule on one rank; a `Trainable` of `ddl_core/loop.py`.

    Parameters
    ----------
    spec : RunSpec
    framework : Framework
    group : Group
        Its ranks, for all numbers but the gradients.

    Attributes
    ----------
    latest : State
        The state after the last epoch, statistics averaged.
    """

    device_waits: int | None = None

    def __init__(self, spec: RunSpec, framework: Framework, group: Group) -> None:
        self.spec, self.framework, self.group = spec, framework, group
        self.timestamps = Timestamps(framework)
        self.latest = framework.state()
        self._close_steps = CLOSELY_WATCHED_STEPS
        self._rate, self._loss = math.nan, 0.0
        self._epochs = 0
        self._is_cold = True

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing: the framework draws its random numbers by the number of the update."""

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
        self.framework.step(images, labels, rate)
        if self._close_steps:  # reading the settings may wait for the device
            self._close_steps -= 1
            check_settings(self.spec, self.framework.settings(), rate)

    def end_epoch(self, timing: EpochTiming) -> None:
        """Check the epoch; average the running statistics over ranks. A collective."""
        check_settings(self.spec, self.framework.settings(), self._rate)
        if not self._is_cold:
            check_cores(self.spec, timing.cpu_s, timing.wall_s)
        self._loss = self.framework.loss()
        self.latest = average_statistics(self.framework, self.group)
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
        logits = self.framework.predict(filled(images, self.spec.local_batch_size))
        self._totals += scores(logits[: len(labels)], labels)

    def evaluate_nothing(self, steps: int) -> None:
        """Do nothing: predicting is local."""

    def scores(self) -> npt.NDArray[np.float64]:
        """Return sums over this rank's images: loss, first labels, labels among the first five."""
        return self._totals


def average_statistics(framework: Framework, group: Group) -> State:
    """Replace every running statistic by its mean over ranks; return the state. A collective.

    Once an epoch: it equals averaging after every step, see `ddl_core/batch_norm.py`.
    """
    state = framework.state()
    names = [name for name in state.values if is_statistic(name)]
    if group.world_size == 1 or not names:
        return state
    whole = np.concatenate([state.values[name] for name in names])
    mean = mean_over_ranks(group, whole.astype(np.float64)).astype(np.float32)
    parts = np.split(mean, np.cumsum([len(state.values[name]) for name in names])[:-1])
    state.values.update(zip(names, parts, strict=True))
    framework.load(state)
    return state


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

    `FairnessError` if it is not what the run asks for.
    """
    wanted = {"lr": rate, **rule_of(spec)}
    for name, value in wanted.items():
        if not math.isclose(used[name], value, rel_tol=SINGLE):
            raise broken(
                "same learning rate and update rule",
                f"the update was made with {name} = {used[name]}, not {value}",
            )


def check_cores(spec: RunSpec, cpu_s: float, wall_s: float) -> None:
    """Check that the ranks of a window computed with no more cores than the run gives them.

    One core more for each rank: what sends its gradients may wait for them at work. `FairnessError`
    if a framework had threads of its own.
    """
    cores = spec.world_size * (spec.cpu_threads + spec.loader_workers + 1)
    if cpu_s > BUSY * wall_s * cores:
        raise broken(
            "no more cores than asked for",
            f"{cpu_s:.1f} s of processor in {wall_s:.1f} s, on more than the {cores} cores of "
            f"{spec.world_size} ranks with cpu_threads = {spec.cpu_threads}, loader_workers = "
            f"{spec.loader_workers} and one that communicates",
        )
