"""A configuration of known throughput, measured or stated; and checks of numbers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_tools.estimate import Estimate

MAX_EXTRAPOLATION = 4  # times the largest known number of ranks


@dataclass(frozen=True, eq=False)
class Configuration:
    """A strategy with a loader on one kind of machine.

    ``details`` are the settings in which it differs from others of the same strategy and loader,
    ``batch_size`` the images per rank and optimiser step, ``sizes`` the numbers of ranks with a
    measured or stated value, ascending. ``sources`` name the records or statements; ``in_jobs``
    says that SLURM jobs measured it. ``throughput`` gives images per second on a number of ranks.
    ``describes`` says of a run whether it is one of this configuration, on any number of ranks.
    """

    machine: str
    strategy: str
    loader: str
    details: str
    batch_size: int
    ranks_per_node: int
    sizes: tuple[int, ...]
    sources: tuple[str, ...]
    throughput: Callable[[int], Estimate]
    in_jobs: bool = False
    describes: Callable[[RunSpec], bool] = lambda spec: False

    @property
    def max_ranks(self) -> int:
        """Largest number of ranks that is not too far from known; one size shows no trend."""
        return self.sizes[-1] * (MAX_EXTRAPOLATION if len(self.sizes) > 1 else 1)

    def covers(self, ranks: int) -> bool:
        """Return whether the throughput on `ranks` is known, or not too far from known."""
        return self.sizes[0] <= ranks <= self.max_ranks

    def extrapolation(self, ranks: int) -> float:
        """Return how many times beyond the largest known number of ranks this is; 1 is within."""
        return max(ranks / self.sizes[-1], 1.0)

    def hours(self, ranks: int, images: int) -> Estimate:
        """Return the hours in which `images` are trained on."""
        rate = self.throughput(ranks)
        value, low, high = (images / part / 3600 for part in (rate.value, rate.high, rate.low))
        return Estimate(value, low, high)


def positive(**values: ArrayLike) -> None:
    """Raise a SpecError that names the first value that is not above 0."""
    for name, value in values.items():
        if not (np.asarray(value, float) > 0).all():
            raise SpecError(f"{name}={value!r} has to be above 0")


def at_least(least: float, **values: ArrayLike) -> None:
    """Raise a SpecError that names the first value that is below `least`."""
    for name, value in values.items():
        if not (np.asarray(value, float) >= least).all():
            raise SpecError(f"{name}={value!r} has to be at least {least:g}")
