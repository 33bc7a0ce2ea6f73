"""Decide from throughputs alone which configurations of a search are dropped.

The model is additive: the logarithm of a throughput is the sum of a part of the configuration, a
part of the block, and noise. A block is one start of several configurations, whose epochs
alternate. ``benchmarks/recommend_errors.py`` counts false decisions by simulation.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from scipy.special import stdtr

ALPHA = 0.05  # error rate of a whole search
HOPELESS = 0.5  # of the fastest one's throughput: less is dropped without a test

Name = TypeVar("Name", bound=Hashable)


class Observation(NamedTuple, Generic[Name]):
    """Throughput of a configuration in a block; blocks come in the order of their names."""

    configuration: Name
    block: str
    value: float


class Additive(Generic[Name]):
    """Least-squares fit of the additive model, with one variance for all configurations."""

    def __init__(self, observations: Sequence[Observation[Name]]) -> None:
        self.configurations = list(dict.fromkeys(one.configuration for one in observations))
        blocks = list(dict.fromkeys(one.block for one in observations))
        self._column = {name: number for number, name in enumerate(self.configurations)}
        count = len(self._column)
        design = np.zeros((len(observations), count + len(blocks)))
        for row, one in zip(design, observations, strict=True):
            row[self._column[one.configuration]] = row[count + blocks.index(one.block)] = 1
        logs = np.log([one.value for one in observations])
        self._parts, _, rank, _ = np.linalg.lstsq(design, logs, rcond=None)
        residual = logs - design @ self._parts
        self._freedom = len(observations) - int(rank)
        self._variance = float(residual @ residual) / max(self._freedom, 1)
        self._spread = np.linalg.pinv(design.T @ design)

    def log_ratio(self, one: Name, other: Name) -> float:
        """Return the logarithm of the ratio of two throughputs."""
        return float(self._parts[self._column[one]] - self._parts[self._column[other]])

    def p_slower(self, one: Name, other: Name) -> float:
        """Return the one-sided p of "`one` is at least as fast as `other`"; 1 if not testable."""
        if one == other or self._freedom < 1:
            return 1.0
        contrast = np.zeros(len(self._parts))
        contrast[self._column[one]], contrast[self._column[other]] = 1, -1
        error = math.sqrt(max(self._variance * float(contrast @ self._spread @ contrast), 1e-18))
        return float(stdtr(self._freedom, self.log_ratio(one, other) / error))


class Race(Generic[Name]):
    """State of a search: configurations that are left, fastest first, and those dropped.

    `dropped` has the look, from 1, at which each was dropped. `race` makes it.
    """

    def __init__(self, model: Additive[Name], left: list[Name], dropped: dict[Name, int]) -> None:
        self.left, self.dropped = left, dropped
        self.configurations, self.log_ratio = model.configurations, model.log_ratio


def race(observations: Sequence[Observation[Name]], alpha: float = ALPHA) -> Race[Name]:
    """Look at the observations after each block, and drop what is slower than the leader.

    At look l, a configuration is dropped if a one-sided t-test says that it is slower, at the level
    ``alpha / (k (l - 1) l)`` with k configurations; or if it has less than half the throughput. The
    levels of all looks and configurations add up to less than `alpha`. The first look has no
    test, because one start shows no variance. A dropped configuration does not return.
    """
    model, left, dropped = Additive(observations), list[Name](), dict[Name, int]()
    for look, block in enumerate(sorted({one.block for one in observations}), start=1):
        model = Additive([one for one in observations if one.block <= block])
        known = [one for one in model.configurations if one not in dropped]
        left = sorted(known, key=lambda one: -model.log_ratio(one, known[0]))
        level = alpha / (len(model.configurations) * (look - 1) * look) if look > 1 else 0.0
        for one in left[1:]:
            hopeless = model.log_ratio(one, left[0]) < math.log(HOPELESS)
            if hopeless or model.p_slower(one, left[0]) < level:
                dropped[one] = look
    return Race(model, [one for one in left if one not in dropped], dropped)
