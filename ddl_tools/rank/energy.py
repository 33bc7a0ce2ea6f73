"""The meter of a run: all ranks agree on what is read, and each thing is read by one of them."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import numpy as np

from ddl_core.strategies import Group
from ddl_tools.rank.energy_counters import Counter, GpuCounter, GpuPower, Rapl, Unmeasured

log = logging.getLogger(__name__)

Makers = Sequence[Callable[[], Counter]]
"""Of one kind of counter, the best first."""


class Meter:
    """Joules of a window over all ranks, every GPU and every machine once.

    A source counts only if all ranks have it. On GPUs, theirs has to be one of them: processors
    alone would be a small part of the energy that looks like all of it. The constructor is a
    collective, and so is `stop`; leaving the context ends a window that an error cut short.

    `gpu` is the UUID of this rank's GPU, None on the CPU. `method` says what `stop` counts, None if
    it counts nothing; `missing` says what is not counted, and why.
    """

    def __init__(self, group: Group, gpu: str | None) -> None:
        self._group = group
        self._mine: list[Counter] = []
        self._failed = False
        self.missing: str | None = None
        kinds: list[Makers] = [[Rapl]]
        if gpu is not None:
            kinds.insert(0, [partial(GpuCounter, gpu), partial(GpuPower, gpu)])
        methods: list[str] = []
        for makers in kinds:
            method, self.missing = self._add(makers)
            if method is None:
                break
            methods.append(method)
        self.method = " + ".join(methods) or None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self._mine:
            try:
                source.close()
            except Unmeasured as error:
                log.warning("energy: %s", error)

    def start(self) -> None:
        """Open a window."""
        self._failed = False
        for source in self._mine:
            try:
                source.start()
            except Unmeasured as error:
                self._fail(error)

    def stop(self) -> float | None:
        """Close the window; return joules of all ranks, None if any could not be read."""
        if self.method is None:
            return None
        joules = 0.0
        for source in self._mine:
            try:
                joules += source.stop()
            except Unmeasured as error:
                self._fail(error)
        # Not a number on one rank is not a number in the sum.
        total = float(self._group.reduce(float("nan") if self._failed else joules))
        return None if total != total else total

    def _fail(self, error: Unmeasured) -> None:
        self._failed = True
        log.warning("energy of this window is lost: %s", error)

    def _add(self, makers: Makers) -> tuple[str | None, str | None]:
        """Use the first source that all ranks can make; return its method, or why there is none."""
        reason = None
        for make in makers:
            try:
                source = make()
                reason = f"{source.method}: not readable on every rank"
            except Unmeasured as error:
                source, reason = None, str(error)
            if self._group.reduce(float(source is not None), "min"):
                assert source is not None
                if self._first_with(source.device):
                    self._mine.append(source)
                return source.method, None
        return None, reason

    def _first_with(self, device: str) -> bool:
        """Say whether no lower rank has the same `device`."""
        group = self._group
        devices = np.zeros(group.world_size)
        # 48 bits: float64 holds them exactly, and so does a sum with zeros.
        devices[group.rank] = int(hashlib.sha256(device.encode()).hexdigest()[:12], 16)
        own, *lower = group.reduce(devices)[group.rank :: -1].tolist()
        return own not in lower
