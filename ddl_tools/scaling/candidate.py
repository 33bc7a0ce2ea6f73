"""What may be trained where: machines, and candidates of known throughput."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_tools import gpus
from ddl_tools.estimate import Estimate
from ddl_tools.names import describe, hardware, joined
from ddl_tools.records.provenance import host

MAX_EXTRAPOLATION = 4  # times the largest known number of ranks
_MAX_RANKS = 1024  # of a cluster, as far as the paper goes
NAMED = ("strategy", "loader")
"""Fields that the name of each candidate has."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A configuration of known throughput, measured or stated of one kind of machine.

    ``spec`` is a run of it, on any number of ranks. ``details`` are the settings in which it
    differs from others of the same strategy and loader. ``sizes`` are the numbers of ranks with a
    measured or stated value, ascending. ``sources`` name the records or statements; ``in_jobs``
    says that SLURM jobs measured it. ``throughput`` gives images per second on a number of ranks.
    ``describes`` says of a run whether it is one of this candidate, on any number of ranks.
    """

    spec: RunSpec
    machine: str
    sizes: tuple[int, ...]
    sources: tuple[str, ...]
    throughput: Callable[[int], Estimate]
    details: str = ""
    in_jobs: bool = False
    describes: Callable[[RunSpec], bool] = lambda spec: False

    @property
    def name(self) -> str:
        """Strategy and loader in words, and the details."""
        return joined(describe({name: getattr(self.spec, name) for name in NAMED}), self.details)

    @property
    def batch_size(self) -> int:
        """Images per rank and optimiser step."""
        return self.spec.local_batch_size * self.spec.accumulation

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
        return hours(self.throughput(ranks), images)


def hours(rate: Estimate, images: int) -> Estimate:
    """Return the hours in which `images` are trained on at a rate in images per second."""
    value, low, high = (images / part / 3600 for part in (rate.value, rate.high, rate.low))
    return Estimate(value, low, high, rate.n)


@dataclass(frozen=True)
class Machine:
    """Where the training is to run: a site of slurm/, or this machine without a `name`.

    ``description`` is the site's own, or the name of this machine's GPU or processor.
    ``ranks_per_node`` is 0 for a site without GPUs: a node has as many ranks as in the runs.
    """

    name: str
    description: str
    ranks_per_node: int

    @classmethod
    def here(cls) -> "Machine":
        """Return this machine: its GPUs, else its cores."""
        if (found := gpus.listed()) is not None:
            return cls("", found.names[0], len(found.names))
        of = host()
        return cls("", hardware(None, of["cpu"], of["cpu_cores"]), of["cpu_cores"])

    @property
    def title(self) -> str:
        """Its name in an answer."""
        return self.name or f"this machine ({self.description})"

    def owns(self, candidate: Candidate) -> bool:
        """Return whether a candidate was measured or stated of this machine.

        A site owns what its description names and what the user's own jobs measured; this machine
        owns what has its name.
        """
        if self.name:
            return candidate.in_jobs or candidate.machine in self.description
        return candidate.machine == self.description

    def sizes(self, max_gpus: int | None) -> list[int]:
        """Return the numbers of ranks to look at: whole nodes of a site, each twice the last."""
        most = max_gpus or (_MAX_RANKS if self.name else self.ranks_per_node)
        least = max(self.ranks_per_node, 1) if self.name else 1
        return [least * 2**power for power in range(40) if least * 2**power <= most]


def positive(**values: ArrayLike) -> None:
    """Raise a SpecError that names the first value that is not above 0."""
    for name, value in values.items():
        if not (np.asarray(value, float) > 0).all():
            raise SpecError(f"{name}={value!r} has to be above 0")
