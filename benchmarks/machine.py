"""The machine of a simulated search: its clock, its noise, and a neighbour on the same cores.

The noise is that of `benchmarks.coverage`. A neighbour takes cores during random stretches: all
rates fall meanwhile, and rounds with uneven windows are left out, as `ddl_tools.records.rounds`
does by CPU seconds.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.coverage import start
from ddl_tools.recommend.plan import FINISH_S
from ddl_tools.records.rounds import LEAST_CPU

ROUNDS = 3  # of a start; the first one does not count
EPOCHS = ROUNDS + 1  # a cold one as well
PART_WINDOWS = 2  # of a part that count
# Of a neighbour: mean seconds of stretches without and with it, what it takes of a rate, and its
# share of the cores.
QUIET_S, BUSY_S = 60.0, 60.0
LOST = (0.3, 0.6)
SHARE = (0.2, 0.5)


class Stretch(NamedTuple):
    """Seconds with a neighbour: the share of a rate that it costs, and its share of the cores."""

    begin_s: float
    end_s: float
    lost: float
    share: float


class Machine:
    """A machine that measures for a search of some minutes."""

    def __init__(
        self, generator: np.random.Generator, minutes: float, neighbour: bool = False
    ) -> None:
        self._generator = generator
        self._now_s, self._ends_s = 0.0, 60 * minutes - FINISH_S
        self._stretches = list(_stretches(generator, self._ends_s)) if neighbour else []
        self._shares: list[float] = []

    @property
    def left_s(self) -> float:
        """Seconds that are left for measuring."""
        return self._ends_s - self._now_s

    @property
    def disturbance(self) -> float:
        """Mean share of the cores that other programs had while configurations were measured."""
        return float(np.mean(self._shares)) if self._shares else 0.0

    def spend(self, seconds: float) -> bool:
        """Let time pass; return whether the search still goes on."""
        self._now_s += seconds
        return self.left_s >= 0

    def part(self, seconds: float) -> float | None:
        """Return the factor of noise on the rate of a part; None if the time is over."""
        lost, _ = self._taken(seconds)
        logs, _ = start(self._generator, PART_WINDOWS, arms=1)
        return (1 - lost) * math.exp(logs.mean()) if self.spend(seconds) else None

    def block(self, windows_s: Sequence[float]) -> np.ndarray | None:
        """Return the factors on the rates of interleaved configurations; `windows_s` are epochs.

        None if the time is over, or if no round counts.
        """
        arms = len(windows_s)
        self.spend(sum(windows_s))  # cold epochs
        logs, good = start(self._generator, ROUNDS, arms=arms)
        kept = np.ones((ROUNDS, arms))
        for number in range(ROUNDS):
            for arm, seconds in enumerate(windows_s):
                lost, share = self._taken(seconds)
                kept[number, arm] -= lost
                self._shares.append(share)
                self.spend(seconds)
        good &= (kept >= LEAST_CPU * np.median(kept, axis=0)).all(axis=1)
        counted = (logs + np.log(kept))[1:][good[1:]]
        return np.exp(counted.mean(axis=0)) if len(counted) and self.left_s >= 0 else None

    def _taken(self, seconds: float) -> tuple[float, float]:
        """Return what a neighbour costs in the next seconds: of a rate, and of the cores."""
        begin, end = self._now_s, self._now_s + seconds
        lost = share = 0.0
        for one in self._stretches:
            overlap = max(0.0, min(end, one.end_s) - max(begin, one.begin_s)) / seconds
            lost, share = lost + overlap * one.lost, share + overlap * one.share
        return lost, share


def _stretches(generator: np.random.Generator, until_s: float) -> Iterator[Stretch]:
    end_s = 0.0
    while end_s < until_s:
        begin_s = end_s + generator.exponential(QUIET_S)
        end_s = begin_s + generator.exponential(BUSY_S)
        yield Stretch(begin_s, end_s, generator.uniform(*LOST), generator.uniform(*SHARE))


class Training(NamedTuple):
    """What the rate of a training alone depends on."""

    strategy: str
    ranks: int
    batch: int  # of a rank
    precision: str
    channels_last: bool
    compile: bool


class Loading(NamedTuple):
    """What the rate of a loader alone depends on."""

    loader: str
    decode: str
    processes: int  # of all ranks


def training_of(spec: Any) -> Training:
    """Return the training of a `RunSpec`."""
    return Training(
        *(spec.strategy, spec.gpus_per_node, spec.local_batch_size),
        *(spec.precision, spec.channels_last, spec.compile),
    )


def loading_of(spec: Any) -> Loading:
    """Return the loader of a `RunSpec`; older ones have no `dali_decode`."""
    decode = getattr(spec, "dali_decode", "gpu") if spec.loader == "dali_gpu" else "cpu"
    return Loading(spec.loader, decode, spec.loader_workers * spec.gpus_per_node)
