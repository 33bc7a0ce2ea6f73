"""The emulated accelerator of a rank: work takes the time that it is told to take, and no core.

Without torch, so that what is kept of a run can ask it how late it was.
"""

import os
import time
from functools import cache

import numpy as np

from ddl_core.spec.run import RunSpec
from ddl_core.spec.seeds import derive_seed

FASTEST = 0.1  # of a step's compute: a normal draw has no end


class Pace:
    """Work queues up behind earlier work, until absolute deadlines.

    Waking up a little late in one layer is made up for in the next one, as a host that is ahead of
    a GPU makes up for its own time. What is left of it at the end of a step is kept in `late_s`.

    Parameters
    ----------
    spec
        An emulated run.
    rank
        Whose steps are paced.

    Attributes
    ----------
    rank : int
    gradient_bytes : int
        Of one step, as the network says.
    factors : list of float
        How many times longer than asked each step's compute was to take: straggler and jitter.
    late_s : list of float
        How long after its deadline each step's last layer was done, seconds.
    """

    def __init__(self, spec: RunSpec, rank: int) -> None:
        self.rank = rank
        self._step_s = spec.box_step_ms / 1000
        self._jitter, self._draws = spec.box_jitter, spec.box_draws
        last = spec.world_size > 1 and rank == spec.world_size - 1
        self._straggler = spec.box_straggler if last else 1.0
        self._random = np.random.default_rng(derive_seed("pace", spec.seed, spec.repeat, rank))
        self._deadline = self._factor = 0.0
        self.gradient_bytes = 0
        self.factors: list[float] = []
        self.late_s: list[float] = []

    def begin_step(self) -> None:
        """Draw how long the step takes; its first work begins now."""
        draws = 1 + self._jitter * self._random.standard_normal(self._draws)
        self._factor = max(FASTEST, float(draws.max())) * self._straggler
        self._deadline = time.perf_counter()

    def work(self, share: float) -> None:
        """Wait until `share` of the step's compute is done, after all earlier work."""
        self._deadline += share * self._factor * self._step_s
        left = self._deadline - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def end_step(self) -> None:
        """Keep what the step was to take, and how late its end is."""
        self.factors.append(self._factor)
        self.late_s.append(max(0.0, time.perf_counter() - self._deadline))


@cache
def of_this_rank(spec: RunSpec) -> Pace:
    """Return the accelerator of this process: one for its network and for its record."""
    return Pace(spec, int(os.environ.get("RANK", 0)))
