"""What waiting for the slowest of G ranks costs: the expected maximum of random delays.

A synchronous step ends when its last rank does. Two kinds of delay, independent from step to step:
jitter of each rank's computing, normal; and stalls at the start of a step, exponential, of whole
nodes, whose ranks share processor, operating system and file system.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.signal import lfilter
from scipy.special import digamma, log_ndtr, ndtri
from scipy.stats import qmc

Values = NDArray[np.float64]

_REACH, _GRID = 9.0, 2001  # standard deviations and points: four digits up to a million ranks
_TAIL = 26.0  # means of an exponential delay: ln of a million and 12 more
_DRAWS = qmc.Sobol(4, scramble=True, rng=np.random.default_rng(0)).random(512)


@dataclass(frozen=True)
class Delays:
    """Random delays in seconds: of a rank (standard deviation) and of a node (mean)."""

    jitter_s: float
    stall_s: float
    ranks_per_node: int = 1

    def slowest(self, ranks: ArrayLike) -> Values:
        """Return by how much the slowest of `ranks` ranks is behind the mean one, in seconds.

        Jitter alone: the integral of 1 - Phi(x)^G over x > 0 less that of Phi(x)^G over x < 0.
        Stalls alone: H_N - 1 means, with the harmonic number H of N nodes. Both: the first integral
        with the distribution of a node's slowest rank and its stall together.
        """
        count = np.asarray(ranks, float)
        nodes = np.ceil(count / self.ranks_per_node)
        if not self.jitter_s:
            return np.asarray(self.stall_s * (digamma(nodes + 1) - digamma(1.0) - 1))
        x, step = self._grid, self._grid[1] - self._grid[0]
        found = [
            np.trapezoid(np.where(x > 0, 1 - below, -below), dx=step)
            for each, of in zip(np.ravel(count / nodes), np.ravel(nodes), strict=True)
            for below in [self._node(float(each)) ** of]
        ]
        # Between two points of the grid, at 0, the integrand jumps by 1.
        jump = float(np.where(x > 0, 1.0, 0.0).argmax())
        correction = x[int(jump)] - 0.5 * step
        whole = np.reshape(found, count.shape) + correction - self.stall_s
        return np.asarray(np.where(count > 1, whole, 0.0))

    def behind(self, ranks: ArrayLike) -> Values:
        """Return how long a rank waits for the slowest, as equally likely values, in seconds.

        Shape (number of `ranks`, Q). What it waits for is the later of its own node's other ranks
        and of all other nodes. The mean is that of `slowest`.
        """
        count = np.atleast_1d(np.asarray(ranks, float))
        if not self.jitter_s and not self.stall_s:
            return np.zeros((len(count), len(_DRAWS)))
        rows = [self._behind(float(one)) for one in count]
        mean = self.slowest(count)
        return np.array(
            [
                row * want / row.mean() if want > 0 else 0 * row
                for row, want in zip(rows, mean, strict=True)
            ]
        )

    def _behind(self, count: float) -> Values:
        nodes = np.ceil(count / self.ranks_per_node)
        each = count / nodes
        own, stalled, peers, others = _DRAWS.T
        own = self.jitter_s * ndtri(own)
        stalled = -self.stall_s * np.log1p(-stalled)
        slowest = np.full(len(own), -np.inf)
        if each > 1:
            slowest = stalled + self.jitter_s * ndtri(peers ** (1 / (each - 1)))
        if nodes > 1:
            slowest = np.maximum(slowest, self._quantile(others ** (1 / (nodes - 1)), each))
        return np.maximum(slowest - stalled - own, 0.0)

    def _quantile(self, share: Values, each: float) -> Values:
        if not self.jitter_s:
            return np.asarray(-self.stall_s * np.log1p(-share))
        return np.interp(share, self._node(each), self._grid)

    @cached_property
    def _grid(self) -> Values:
        reach = _REACH * self.jitter_s
        return np.linspace(-reach, reach + _TAIL * self.stall_s, _GRID)

    def _node(self, each: float) -> Values:
        """Return the distribution of a node's slowest of `each` ranks and its stall together.

        With an exponential delay of mean t, t F' + F is the distribution without it.
        """
        below = np.exp(each * log_ndtr(self._grid / self.jitter_s))
        if not self.stall_s:
            return np.asarray(below)
        kept = np.exp(-(self._grid[1] - self._grid[0]) / self.stall_s)
        return np.asarray(lfilter([(1 - kept) / 2, (1 - kept) / 2], [1, -kept], below))
