"""What a rank of a cluster in a box notes of each epoch: bytes, CPU time, how late it was."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddl_core.emulation.compute import of_this_rank
from ddl_core.emulation.validity import Noted, note
from ddl_core.errors import LaunchError
from ddl_core.records.paths import BoxFiles
from ddl_core.spec.run import RunSpec

LINK = "ib0:"  # as the nodes call it, in the kernel's counters


@dataclass(frozen=True)
class _Reading:
    moment: float
    cpu_s: float
    machine_cpu_s: float
    sent_bytes: int | None
    steps: int


class Watch:
    """Reads counters before and after each epoch of training, outside the clock's window.

    Parameters
    ----------
    spec
        An emulated run.
    files
        Where it is noted.
    """

    def __init__(self, spec: RunSpec, files: BoxFiles) -> None:
        self._files, self._pace = files, of_this_rank(spec)
        self._cores = sorted(os.sched_getaffinity(0))
        self._first_of_node = self._pace.rank % spec.gpus_per_node == 0
        self._before = self._reading()

    def begin(self) -> None:
        """Note where the counters are now."""
        self._before = self._reading()

    def end(self, epoch: int, cold: bool) -> None:
        """Write down what an epoch took since `begin`."""
        before, after, pace = self._before, self._reading(), self._pace
        sent = None
        if after.sent_bytes is not None and before.sent_bytes is not None:
            sent = after.sent_bytes - before.sent_bytes
        noted = Noted(
            epoch=epoch,
            cold=cold,
            wall_s=after.moment - before.moment,
            cpu_s=after.cpu_s - before.cpu_s,
            machine_cpu_s=after.machine_cpu_s - before.machine_cpu_s,
            cores=len(self._cores),
            sent_bytes=sent,
            gradient_bytes=pace.gradient_bytes,
            factors=pace.factors[before.steps :],
            late_s=pace.late_s[before.steps :],
        )
        note(self._files, pace.rank, noted)

    def _reading(self) -> _Reading:
        times = psutil.cpu_times(percpu=True)
        busy = (times[core] for core in self._cores)
        return _Reading(
            moment=time.perf_counter(),
            cpu_s=time.process_time(),
            machine_cpu_s=sum(sum(core[:8]) - core.idle - core.iowait for core in busy),
            sent_bytes=_sent() if self._first_of_node else None,
            steps=len(self._pace.factors),
        )


def _sent() -> int:
    """Return the bytes that this node's link has sent, headers included.

    Raises
    ------
    LaunchError
        If this process is in no node.
    """
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, *counters = line.split()
        if name == LINK:
            return int(counters[8])
    raise LaunchError("this rank is in no node of a box: start emulated runs with `ddl run`")
