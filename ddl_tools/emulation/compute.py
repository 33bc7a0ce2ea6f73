"""Simulated compute: work sleeps until its deadline, and takes no core. Without torch."""

import os
import time
from functools import cache

import numpy as np

from ddl_core.config import RunSpec
from ddl_core.schedules import derive_seed
from ddl_tools.emulation.options import Emulated

MIN_FACTOR = 0.1  # of a step's compute: a normal draw has no end


class SimulatedCompute:
    """Work of a rank that queues up behind earlier work, until absolute deadlines.

    The next layer makes up for a late wake-up, as a host that is ahead of a GPU makes up for its
    own time.

    Attributes
    ----------
    gradient_bytes : int
        Of one step; the network sets it.
    factors : list of float
        Compute time of each step relative to ``emu_step_ms``: straggler and jitter.
    late_s : list of float
        Seconds from the deadline of each step to the end of its last layer.
    """

    def __init__(self, spec: RunSpec, rank: int) -> None:
        self.rank = rank
        asked = spec.of(Emulated)
        self._step_s = asked.emu_step_ms / 1000
        self._jitter, self._draws = asked.emu_jitter, asked.emu_draws
        last = spec.world_size > 1 and rank == spec.world_size - 1
        self._straggler = asked.emu_straggler if last else 1.0
        self._random = np.random.default_rng(derive_seed("pace", spec.seed, spec.repeat, rank))
        self._deadline = self._factor = 0.0
        self.gradient_bytes = 0
        self.factors: list[float] = []
        self.late_s: list[float] = []

    def begin_step(self) -> None:
        """Draw how long the step takes; its first work begins now."""
        draws = 1 + self._jitter * self._random.standard_normal(self._draws)
        self._factor = max(MIN_FACTOR, float(draws.max())) * self._straggler
        self._deadline = time.perf_counter()

    def work(self, share: float) -> None:
        """Wait until `share` of the step's compute is done, after all earlier work."""
        self._deadline += share * self._factor * self._step_s
        left = self._deadline - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def end_step(self) -> None:
        """Keep the factor of the step, and how late its end is."""
        self.factors.append(self._factor)
        self.late_s.append(max(0.0, time.perf_counter() - self._deadline))


@cache
def of_this_rank(spec: RunSpec) -> SimulatedCompute:
    """Return the simulated compute of this process: one for its network and for its record."""
    return SimulatedCompute(spec, int(os.environ.get("RANK", 0)))
