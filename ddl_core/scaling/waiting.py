"""What waiting for the slowest of G ranks costs: the expected maximum of G random delays.

A synchronous step ends when its last rank does. Delays are independent from rank to rank and step
to step, of one of two kinds: ``normal`` is jitter of the whole step, ``exponential`` are rare
stalls (of the operating system, the file system, a loader) at the start of a step.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma, log_ndtr, ndtri

Tail = Literal["normal", "exponential"]
TAILS: tuple[Tail, ...] = ("normal", "exponential")

_REACH, _GRID = 9.0, 2001  # standard deviations and points: five digits up to a million ranks
_QUANTILES = 12


def slowest_of(ranks: ArrayLike, tail: Tail) -> NDArray[np.float64]:
    """Return how far the slowest of G ranks is behind the mean rank, in scales of the delay.

    The scale is the standard deviation of a normal delay, the mean of an exponential one. Normal:
    the integral of 1 - Phi(x)^G over x > 0 less that of Phi(x)^G over x < 0. Exponential: H_G - 1
    with the harmonic number H.
    """
    count = np.asarray(ranks, float)
    if tail == "exponential":
        return np.asarray(digamma(count + 1) - digamma(1.0) - 1)
    x = np.linspace(-_REACH, _REACH, _GRID)
    below = np.exp(count[..., None] * log_ndtr(x))
    return np.asarray(np.trapezoid(np.where(x > 0, 1 - below, -below), x, axis=-1)) + (
        # half of the step at 0, where the integrand jumps by 1 between two points of the grid
        0.5 * (x[1] - x[0])
    )


def behind(ranks: ArrayLike, tail: Tail) -> NDArray[np.float64]:
    """Return how long a rank waits for the slowest, as equally likely values, in scales.

    Shape (number of `ranks`, Q). The slowest of the G - 1 others and the rank itself are
    independent, so a grid of their quantiles has every pair; their mean is that of `slowest_of`.
    """
    count = np.atleast_1d(np.asarray(ranks, float))[:, None, None]
    middle = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    others = _quantile(middle[:, None] ** (1 / np.maximum(count - 1, 1)), tail)
    grid = np.maximum(others - _quantile(middle, tail), 0).reshape(len(count), -1)
    mean = slowest_of(count[:, 0, 0], tail)[:, None]
    return np.where(count[:, 0] > 1, grid * mean / grid.mean(axis=1, keepdims=True), 0.0)


def _quantile(share: NDArray[np.float64], tail: Tail) -> NDArray[np.float64]:
    return np.asarray(-np.log1p(-share) if tail == "exponential" else ndtri(share))
