"""The closed form: a step, an epoch, throughput, efficiency over any number of ranks.

    step  = max(compute + waiting + exposed + framework, loading)
    epoch = images / (G B) x compute + ceil(images / (G B)) x (step - compute) + epoch_s

docs/scaling.md has each term's equation, source, unit and what identifies it. A term is exact on
its own, and so is their sum if delays are short beside the compute time; `simulate` has what has no
closed form: stragglers beside random delays, short prefetching.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ddl_core.errors import SpecError
from ddl_core.scaling.checks import at_least, positive
from ddl_core.scaling.collectives import Network, all_reduce
from ddl_core.scaling.loading import Loading
from ddl_core.scaling.messages import Training, messages, reduced_in_cycles, reduced_in_turn
from ddl_core.scaling.waiting import Delays

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Machine:
    """What a machine costs. Times in seconds.

    Attributes
    ----------
    compute_s
        Forward, backward and update of one rank's batch, alone.
    backward_share
        Of it that is backward; 2/3 because backward has twice forward's arithmetic.
    jitter
        Standard deviation of a rank's compute time from step to step, over its mean.
    stall_s
        Mean of the exponential delay of a node at the start of a step.
    straggler
        By how much the slowest rank is always slower, over the others' compute time.
    framework_s
        Of each step where a framework takes part, whatever the number of ranks.
    epoch_s
        Of each epoch, whatever its number of steps: loaders start, ranks meet.
    """

    compute_s: float
    network: Network = field(default_factory=Network)
    loading: Loading = field(default_factory=Loading)
    backward_share: float = 2 / 3
    jitter: float = 0.0
    stall_s: float = 0.0
    straggler: float = 0.0
    framework_s: float = 0.0
    epoch_s: float = 0.0

    def __post_init__(self) -> None:
        positive(compute_s=self.compute_s, backward_share=self.backward_share)
        if self.backward_share > 1:
            raise SpecError(f"backward_share={self.backward_share!r} has to be at most 1")
        at_least(0, jitter=self.jitter, stall_s=self.stall_s, straggler=self.straggler)
        at_least(0, framework_s=self.framework_s, epoch_s=self.epoch_s)

    @property
    def backward_s(self) -> float:
        """Seconds of backward."""
        return self.compute_s * self.backward_share


@dataclass(frozen=True)
class Prediction:
    """What the closed form says, an array over `ranks` each. Times in seconds."""

    machine: Machine
    training: Training
    ranks: Values
    compute_s: float
    waiting_s: Values
    exposed_s: Values
    loading_s: Values
    step_s: Values
    throughput: Values
    epoch_s: Values

    @cached_property
    def all_reduce_share(self) -> Values:
        """The all-reduce's share of the time in GPU kernels, as a profiler adds it up.

        Waiting for others inside an all-reduce counts as all-reduce. Found when it is asked for: it
        takes longer than all the rest.
        """
        return _share(self.machine, self.training, self.ranks, self.loading_s)

    def efficiency(self, base: int) -> Values:
        """Return E_G = (throughput / G) / (that at the base), which has to be among `ranks`.

        Raises
        ------
        SpecError
            If the base was not predicted.
        """
        at = np.flatnonzero(self.ranks == base)
        if not len(at):
            raise SpecError(f"base={base} is not among the predicted numbers of ranks")
        each = self.throughput / self.ranks
        return np.asarray(each / each[at[0]])


def predict(machine: Machine, training: Training, ranks: ArrayLike) -> Prediction:
    """Return what `machine` makes of `training` on each number of `ranks`.

    Raises
    ------
    SpecError
        If there is no rank, or a straggler beside random delays: only `simulate` has these.
    """
    count = np.atleast_1d(np.asarray(ranks, float))
    at_least(1, ranks=count)
    waiting = _waiting(machine, count)
    exposed = exposed_s(machine, training, count)
    framework = 0.0 if training.strategy == "single" else machine.framework_s
    trained = machine.compute_s + waiting + exposed + framework
    load = machine.loading.batch_s(count, training.local_batch_size, machine.network)
    spare = machine.loading.spare_cores
    loading = np.maximum(load - trained, 0) if spare else load
    step = trained + loading
    epoch = _epoch(machine, training, count, step)
    images = training.images or count * training.local_batch_size
    return Prediction(
        machine,
        training,
        ranks=count,
        compute_s=machine.compute_s,
        waiting_s=waiting,
        exposed_s=exposed,
        loading_s=loading,
        step_s=step,
        throughput=np.asarray(images / epoch),
        epoch_s=epoch,
    )


def _epoch(machine: Machine, training: Training, count: Values, step: Values) -> Values:
    """Return the seconds of an epoch; of one step if epochs are not of interest."""
    if not training.images:
        return step
    steps = training.images / (count * training.local_batch_size)
    # The last batch is smaller, but costs what any step costs besides computing.
    overhead = np.ceil(steps) * (step - machine.compute_s)
    return steps * machine.compute_s + overhead + machine.epoch_s


def _delays(machine: Machine) -> Delays:
    if machine.straggler and (machine.jitter or machine.stall_s):
        raise SpecError(
            "a straggler beside jitter or stalls has no closed form; follow them by "
            "ddl_core.scaling.simulate, or set straggler=0"
        )
    jitter = machine.jitter * machine.compute_s
    return Delays(jitter, machine.stall_s, machine.network.gpus_per_node)


def _waiting(machine: Machine, count: Values) -> Values:
    constant = np.where(count > 1, machine.straggler * machine.compute_s, 0.0)
    return np.asarray(_delays(machine).slowest(count) + constant)


def exposed_s(machine: Machine, training: Training, count: Values) -> Values:
    """Return the communication that backward does not hide, for each number of ranks."""
    sent = messages(training)
    if not sent:
        return np.zeros_like(count)
    backward = machine.backward_s
    if training.strategy == "horovod":
        return np.maximum(_cycles(machine, training, count)[0] - backward, 0)
    at = [np.full_like(count, message.ready * backward) for message in sent]
    took = [all_reduce(message.nbytes, count, machine.network) for message in sent]
    return np.asarray(np.maximum(reduced_in_turn(at, took)[-1] - backward, 0))


def _cycles(machine: Machine, training: Training, count: Values) -> tuple[Values, Values]:
    """Return when Horovod has reduced everything, and its seconds in messages, for each `count`."""
    sent, network = messages(training), machine.network
    ready = np.array([message.ready for message in sent]) * machine.backward_s
    sizes = np.array([message.nbytes for message in sent])

    def reduced(ranks: float) -> tuple[float, float]:
        if ranks == 1:
            return machine.backward_s, 0.0
        return reduced_in_cycles(
            ready, sizes, lambda nbytes: float(all_reduce(nbytes, ranks, network)), training
        )

    found = [reduced(float(ranks)) for ranks in count]
    ends, busy = np.array(found).T
    return ends, busy


def _share(machine: Machine, training: Training, count: Values, loading: Values) -> Values:
    """Return the all-reduce's share of kernel time, the mean over ranks and steps.

    What others wait for data shows in the all-reduce too, and compute kernels are taken to fill
    `compute_s`. Horovod starts kernels when all ranks are ready, so that these hold no wait.
    """
    if training.strategy == "horovod":
        kernels = _cycles(machine, training, count)[1]
    else:
        kernels = _kernels_s(machine, training, count)
    total = np.where(count > 1, kernels + loading, 0.0)
    return np.asarray(total / (machine.compute_s + total))


def _kernels_s(machine: Machine, training: Training, count: Values) -> Values:
    """Return the seconds in all-reduce kernels, the mean over ranks.

    A rank's kernel starts when its own message is ready and ends when everybody's is reduced.
    """
    late, weights = _late(machine, count)
    growing = _growing(machine, count)[:, None]
    forward = machine.compute_s - machine.backward_s
    kernels, free = np.zeros_like(late), np.zeros_like(late)
    for message in messages(training):
        own = forward + message.ready * machine.backward_s
        slowest = own + late * (1 - growing * (1 - own / machine.compute_s))
        start = np.maximum(own, free)
        took = all_reduce(message.nbytes, count, machine.network)[:, None]
        free = np.maximum(slowest, free) + took
        kernels += free - start
    return np.asarray((kernels * weights).sum(axis=1))


def _late(machine: Machine, count: Values) -> tuple[Values, Values]:
    """Return by how much the slowest rank is behind the others at the end, and their weights."""
    delays = _delays(machine)
    if machine.straggler:  # who does not wait for itself
        late = np.broadcast_to([0.0, machine.straggler * machine.compute_s], (len(count), 2))
        return late, np.array([1 / count, 1 - 1 / count]).T
    late = delays.behind(count)
    return late, np.full_like(late, 1 / late.shape[1])


def _growing(machine: Machine, count: Values) -> Values:
    """Return which part of the lateness grows with what is computed: a stall is there at once."""
    delays = _delays(machine)
    whole = delays.slowest(count)
    jitter = Delays(delays.jitter_s, 0.0).slowest(count)
    return np.where(whole > 0, np.minimum(jitter / np.maximum(whole, 1e-300), 1.0), 1.0)
