"""Count what other programs take of the cores, and what this one reads from disks."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from ddl_tools.processes import busy_seconds


class Load:
    """What was counted in the blocks that were watched."""

    def __init__(self) -> None:
        self._core_s = self._others_s = 0.0
        self.read_bytes = 0

    @property
    def others(self) -> float | None:
        """Share of the cores that other programs took, 0 to 1; None if nothing was watched."""
        return self._others_s / self._core_s if self._core_s else None

    @contextmanager
    def watched(self, loading: bool = False) -> Iterator[None]:
        """Count in the block what the machine does beside this process and those it starts.

        Reading counts where they load images and nothing else: programs come from disks as well.
        """
        cores = sorted(os.sched_getaffinity(0))
        began, busy_s, own_s, read = time.monotonic(), busy_seconds(cores), *_own()
        try:
            yield
        finally:
            own_after_s, read_after = _own()
            others_s = busy_seconds(cores) - busy_s - (own_after_s - own_s)
            self._core_s += len(cores) * (time.monotonic() - began)
            self._others_s += max(0.0, others_s)
            self.read_bytes += max(0, read_after - read) if loading else 0


def _own() -> tuple[float, int]:
    """Return CPU seconds and bytes read from disks of this process and all that it started."""
    this = psutil.Process()
    seconds, read = 0.0, 0
    for process in [this, *this.children(recursive=True)]:
        with suppress(psutil.Error):
            seconds += sum(process.cpu_times()[:4])  # with those that have ended
            read += process.io_counters().read_bytes
    return seconds, read
