"""Amdahl's law, fitted to throughputs by a posterior on a grid.

    E(G) = 1 / (1 + s (G / G0 - 1))

s is the serial part of the time on G0 ranks. In strong scaling the law equals a constant cost of
each epoch: epoch(G) = T(G0) (1 - s) G0 / G + s T(G0).

The grid has two parameters, s and the relative noise of one value. A scale (the throughput on G0
ranks) is integrated out in closed form. So bands need no random numbers and no optimiser.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from ddl_tools.estimate import Estimate

Values = NDArray[np.float64]
Bound = Literal["value", "lower", "upper"]

COVERAGE = 0.90  # of a band
NOISE = (0.02, 0.2)  # relative standard deviation of one value: range of the prior
SERIAL = (1e-5, 1.0)  # range of the prior of s
_SERIALS, _NOISES, _NORMALS = 121, 15, 15  # points of the grid


class Observation(NamedTuple):
    """A value on a number of ranks, or a bound of it; and the statement that it is from, if any."""

    ranks: int
    value: float
    bound: Bound = "value"
    statement: str = ""


def efficiency(serial: ArrayLike, ranks: ArrayLike, base: float) -> Values:
    """Return E on `ranks` relative to `base` ranks."""
    return np.asarray(1 / (1 + np.asarray(serial) * (np.asarray(ranks) / base - 1)))


def serial_part(efficient: float, ranks: float, base: float) -> float:
    """Return the s with which E on `ranks` is `efficient`."""
    return (1 / efficient - 1) / (ranks / base - 1)


@dataclass(frozen=True)
class Posterior:
    """Points of the grid with their weights, shape (P,).

    ``centre`` is the logarithm of the scale that fits best at each point, and ``spread`` its
    standard deviation.
    """

    base: int
    serial: Values = field(repr=False)
    noise: Values = field(repr=False)
    centre: Values = field(repr=False)
    spread: Values = field(repr=False)
    weight: Values = field(repr=False)

    def throughput(self, ranks: int) -> Estimate:
        """Return median and 90 % band of the throughput that one more run would have.

        They are quantiles of the mixture of normal distributions over the grid.
        """
        mean = np.log(efficiency(self.serial, ranks, self.base))
        mean = mean + np.log(ranks / self.base) + self.centre
        noise = np.hypot(self.noise, self.spread)
        normal = ndtri((np.arange(_NORMALS) + 0.5) / _NORMALS)
        values = (mean[:, None] + noise[:, None] * normal).ravel()
        order = np.argsort(values)
        passed = np.cumsum(np.repeat(self.weight, _NORMALS)[order])
        tail = (1 - COVERAGE) / 2
        levels = np.array([0.5, tail, 1 - tail])
        return Estimate(*np.exp(np.interp(levels, passed / passed[-1], values[order])).tolist())


def fit_throughput(observed: Sequence[Observation]) -> Posterior:
    """Return the posterior given throughputs; the base is the smallest number of ranks."""
    base = min(one.ranks for one in observed)
    serials, noises = np.geomspace(*SERIAL, _SERIALS), np.geomspace(*NOISE, _NOISES)
    serial, sigma = (part.ravel() for part in np.meshgrid(serials, noises, indexing="ij"))
    # Missed by each point of the grid, as a logarithm; shape (points, values).
    counts = np.array([one.ranks for one in observed], float)
    expected = np.log(efficiency(serial[:, None], counts, base)) + np.log(counts / base)
    missed = np.log([one.value for one in observed]) - expected
    centre, spread = missed.mean(axis=1), sigma / np.sqrt(len(observed))
    scores = (missed - centre[:, None]) / sigma[:, None]
    likelihood = np.log(sigma)  # of the scale that is integrated out
    for column in scores.T:
        likelihood = likelihood - np.log(sigma) - column**2 / 2
    weight = np.exp(likelihood - likelihood.max())
    return Posterior(base, serial, sigma, centre, spread, weight / weight.sum())
