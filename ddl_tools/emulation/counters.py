"""Counters of an emulated rank in each epoch of training: bytes sent, CPU time, lateness."""

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import psutil
from pydantic import Field, ValidationError

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, RecordError
from ddl_core.files import cannot_write, open_to_append
from ddl_tools.emulation.compute import of_this_rank
from ddl_tools.emulation.nodes import LINK
from ddl_tools.processes import busy_seconds
from ddl_tools.records.paths import EmulationFiles
from ddl_tools.records.storage import (
    Count,
    Duration,
    Index,
    Number,
    Strict,
    read_text,
    write_atomically,
)


class EpochCounters(Strict):
    """Counters of one rank in one epoch of training: a line of its file."""

    epoch: Index
    cold: bool
    wall_s: Duration
    cpu_s: Duration = Field(description="of the rank")
    machine_cpu_s: Duration = Field(description="of all processes, on the cores that ranks may use")
    cores: Count
    sent_bytes: Count | None = Field(
        None, description="by the node's link; null except for its first rank"
    )
    gradient_bytes: Count
    factors: list[Number] = Field(
        max_length=10**6, description="compute time of each step relative to emu_step_ms"
    )
    late_s: list[Duration] = Field(
        max_length=10**6, description="after the deadline, each step's end"
    )


class RankCounters:
    """Reads counters before and after each epoch of training, outside the clock's window."""

    def __init__(self, spec: RunSpec, files: EmulationFiles) -> None:
        self._files, self._compute = files, of_this_rank(spec)
        self._cores = sorted(os.sched_getaffinity(0))
        self._first_of_node = self._compute.rank % spec.gpus_per_node == 0
        self.begin()

    def begin(self) -> None:
        """Read the counters at the begin of an epoch."""
        self._before, self._steps = self._read(), len(self._compute.factors)

    def end(self, epoch: int, cold: bool) -> None:
        """Write what was counted since `begin`."""
        after, compute = self._read(), self._compute
        counters = EpochCounters(
            epoch=epoch,
            cold=cold,
            cores=len(self._cores),
            gradient_bytes=compute.gradient_bytes,
            factors=compute.factors[self._steps :],
            late_s=compute.late_s[self._steps :],
            **{name: value - self._before[name] for name, value in after.items()},
        )
        write_counters(self._files, compute.rank, counters)

    def _read(self) -> dict[str, Any]:
        sent = {"sent_bytes": _sent_bytes()} if self._first_of_node else {}
        return sent | {
            "wall_s": time.perf_counter(),
            "cpu_s": time.process_time(),
            "machine_cpu_s": busy_seconds(self._cores),
        }


def _sent_bytes() -> int:
    """Return the bytes that this node's link has sent, headers included."""
    links = psutil.net_io_counters(pernic=True)
    if LINK not in links:
        raise LaunchError("this rank is in no emulated node: start emulated runs with `ddl run`")
    return links[LINK].bytes_sent


def write_links(files: EmulationFiles, mbit: Sequence[float]) -> None:
    """Write the measured rates of the links."""
    write_atomically(files.links, json.dumps(list(mbit)) + "\n")


def write_counters(files: EmulationFiles, rank: int, counters: EpochCounters) -> None:
    """Add a line to the file of a rank."""
    path = files.rank(rank)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_to_append(path) as file:
            file.write(f"{counters.model_dump_json()}\n".encode())
    except OSError as error:
        raise cannot_write(path, error) from error


def read_links(files: EmulationFiles) -> list[float]:
    """Return the measured rates of the links, Mbit/s; none of one node."""
    try:
        return json.loads(read_text(files.links))
    except ValueError as error:
        raise RecordError(f"cannot read {files.links}: {error}") from None


def read_counters(files: EmulationFiles, rank: int) -> list[EpochCounters]:
    """Return the counters of a rank in the epochs that count."""
    path = files.rank(rank)
    try:
        rows = [EpochCounters.model_validate_json(line) for line in read_text(path).splitlines()]
    except ValidationError as error:
        raise RecordError(f"cannot read {path}: {error}") from None
    return [row for row in rows if not row.cold]
