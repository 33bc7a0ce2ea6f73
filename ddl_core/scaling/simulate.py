"""The same model event by event, for what has no closed form.

Every rank loads, computes with its own random delays and hands over its gradients; a message is
reduced once all ranks have it ready. Ranks are arrays, steps a loop: 4096 ranks x 1000 steps take
seconds (benchmarks/scaling.py).
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddl_core.scaling.checks import at_least, positive
from ddl_core.scaling.collectives import all_reduce
from ddl_core.scaling.messages import Training, messages, reduced_in_cycles
from ddl_core.scaling.model import Machine
from ddl_core.spec.seeds import derive_seed

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Simulated:
    """What each step took, shape (steps,): seconds from the last update to the next one.

    ``all_reduce_s`` is the time in all-reduce kernels and ``loading_s`` the wait for data, both the
    mean over ranks; ``compute_s`` the mean of what ranks computed.
    """

    step_s: Values
    compute_s: Values
    all_reduce_s: Values
    loading_s: Values

    @property
    def all_reduce_share(self) -> float:
        """The all-reduce's share of kernel time, as `model.Prediction` has it."""
        kernels = float(self.all_reduce_s.sum())
        return kernels / (float(self.compute_s.sum()) + kernels)


def simulate(
    machine: Machine, training: Training, ranks: int, steps: int, seed: int = 0
) -> Simulated:
    """Follow `ranks` ranks for `steps` steps; the same `seed` gives the same delays.

    Raises
    ------
    SpecError
        If there is no rank or no step.
    """
    at_least(1, ranks=ranks)
    positive(steps=steps)
    random = np.random.default_rng(derive_seed("scaling", seed, ranks))
    step = _Step(machine, training, ranks)
    loader = _Loader(machine, training, ranks, random)
    rows, now = np.empty((steps, 4)), 0.0
    node_of = np.arange(ranks) // machine.network.gpus_per_node
    nodes = int(node_of[-1]) + 1
    for number in range(steps):
        there = loader.take(now)
        waited = np.maximum(there - now, 0.0)
        scale = 1.0 + machine.jitter * random.standard_normal(ranks)
        scale[0] += machine.straggler if ranks > 1 else 0.0
        scale = np.maximum(scale, 0.0)
        stall = machine.stall_s * random.standard_exponential(nodes)[node_of]
        begin = now + waited + stall - machine.stall_s  # its mean is in compute_s
        end, kernels = step.run(begin, scale)
        rows[number] = end - now, machine.compute_s * scale.mean(), kernels, waited.mean()
        now = end
    return Simulated(*rows.T)


class _Step:
    """One step of all ranks, from when each begins to when all gradients are reduced."""

    def __init__(self, machine: Machine, training: Training, ranks: int) -> None:
        self.machine, self.training, self.ranks = machine, training, ranks
        self.sent = messages(training)
        self.forward_s = machine.compute_s - machine.backward_s
        self.took = [float(all_reduce(m.nbytes, ranks, machine.network)) for m in self.sent]
        self.ready = np.array([m.ready for m in self.sent])
        self.nbytes = np.array([m.nbytes for m in self.sent])
        self.moments, self.moment_of = np.unique(self.ready, return_inverse=True)

    def run(self, begin: Values, scale: Values) -> tuple[float, float]:
        """Return when the step ends, and the seconds in all-reduce kernels, mean over ranks."""
        computed = float((begin + scale * self.machine.compute_s).max())
        framework = 0.0 if self.training.strategy == "single" else self.machine.framework_s
        if self.ranks == 1 or not self.sent:
            return computed + framework, 0.0
        if self.training.strategy == "horovod":
            end, kernels = self._cycles(begin, scale)
        else:
            end, kernels = self._in_turn(begin, scale)
        return max(end, computed) + framework, kernels

    def _in_turn(self, begin: Values, scale: Values) -> tuple[float, float]:
        free, kernels = -np.inf, 0.0
        for message, took in zip(self.sent, self.took, strict=True):
            after = self.forward_s + message.ready * self.machine.backward_s
            own = begin + scale * after
            started = np.maximum(own, free)
            free = max(float(own.max()), free) + took
            kernels += free - float(started.mean())
        return free, kernels

    def _cycles(self, begin: Values, scale: Values) -> tuple[float, float]:
        """Reduce as Horovod does: what is ready on all ranks, cycle by cycle."""
        after = self.forward_s + self.moments * self.machine.backward_s
        ready = np.array([float((begin + scale * moment).max()) for moment in after])
        start = float(begin.mean()) + self.forward_s
        end, kernels = reduced_in_cycles(
            ready[self.moment_of] - start,
            self.nbytes,
            lambda nbytes: float(all_reduce(nbytes, self.ranks, self.machine.network)),
            self.training,
        )
        return start + end, kernels


class _Loader:
    """The batches of every rank: loaded one after the other, so many ahead, taken in step."""

    def __init__(
        self, machine: Machine, training: Training, ranks: int, random: np.random.Generator
    ) -> None:
        self.loading = machine.loading
        batch = self.loading.batch_s(ranks, training.local_batch_size, machine.network)
        self.batch_s, self.ranks, self.random = float(batch), ranks, random
        self.loaded = np.zeros(ranks)
        # Times at which the places for batches become free: all of them are at the start.
        self.free = deque([np.zeros(ranks)] * self.loading.prefetch)

    def take(self, now: float) -> Values:
        """Return when each rank's next batch is there, if asked for at `now`."""
        if not self.loading.spare_cores:
            self.loaded = now + self._durations()
        else:
            self.loaded = np.maximum(self.loaded, self.free.popleft()) + self._durations()
            self.free.append(np.maximum(self.loaded, now))
        return self.loaded

    def _durations(self) -> Values:
        """Return how long each rank's next batch takes: gamma, with the spread that is asked."""
        if not self.loading.spread or not self.batch_s:
            return np.full(self.ranks, self.batch_s)
        shape = self.loading.spread**-2
        return self.random.gamma(shape, self.batch_s / shape, self.ranks)
