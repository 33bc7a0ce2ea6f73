"""Time of an epoch and its breakdown, for every framework, strategy and loader.

The timed window runs from (barrier, device idle) to (device idle, barrier); its wall time is the
maximum over ranks. Nothing in it waits for the device.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import psutil
from pydantic import BaseModel, ConfigDict, Field

from ddl_core.strategies import Group

Phase = Literal["data", "compute", "communication", "update"]
"""What a mark ends; an update also ends its step."""

PHASES: tuple[Phase, ...] = ("data", "compute", "communication", "update")

# Names in a profile: the beginning of all, of a mark (before its phase), and of the epoch's range.
OURS = "ddl_core."
MARK = OURS + "mark."
WINDOW = OURS + "window"

Item = TypeVar("Item")
Seconds = npt.NDArray[np.float64]
_Part = Annotated[float, Field(ge=-1e9, le=1e9)]  # mean of differences: slightly below 0 at times


class Spent(BaseModel):
    """Seconds of an epoch by what they were spent on, mean over ranks; the sum is its wall time.

    On a GPU they are times of the device: it computes while the host is already elsewhere.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    start_s: _Part = Field(description="from the start to the first batch")
    data_s: _Part = Field(description="waiting for the other batches")
    compute_s: _Part = Field(description="forward and backward, up to the last gradient")
    transfer_s: _Part = Field(
        description="exposed communication of the last rank to arrive in each step"
    )
    waiting_s: _Part = Field(
        description="additional exposed communication: waiting for slower ranks"
    )
    update_s: _Part = Field(description="update of the weights")
    end_s: _Part = Field(description="from the last update until all ranks are done")


class EnergyMeter(Protocol):
    """Measures the energy of a window over all ranks."""

    def start(self) -> None:
        """Open a window."""

    def stop(self) -> float | None:
        """Close the window; return joules of all ranks, None if any could not be read."""


def by_step(phases: list[Phase], seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the seconds of each of `PHASES` in each step, (steps, 4); an update closes a step."""
    kinds = np.array([PHASES.index(phase) for phase in phases], dtype=np.int64)
    closed = kinds == PHASES.index("update")
    step = np.cumsum(closed) - closed
    table = np.zeros((int(closed.sum()), len(PHASES)))
    within = step < len(table)
    np.add.at(table, (step[within], kinds[within]), seconds[within])
    return table


@dataclass(frozen=True)
class EpochTiming:
    """What one epoch took; seconds.

    `wall_s` is from barrier to barrier, `rank_wall_s_*` are the ranks' own times before the closing
    barrier, `cpu_s` is summed over ranks and their loader processes. `data_s`, `step_s_median` and
    `step_s_p95` are maxima over ranks; on a GPU, `data_s` is the time in which the device has no
    batch. `energy_j` is joules of all ranks, None if not measured. `spent` is None unless gradients
    were computed.
    """

    wall_s: float
    cpu_s: float
    data_s: float
    rank_wall_s_min: float
    rank_wall_s_max: float
    step_s_median: float | None
    step_s_p95: float | None
    energy_j: float | None
    spent: Spent | None = None


class HostTimestamps:
    """Timestamps of the host, for a device whose work is done when a call returns."""

    has_step_times = True  # whether steps may be timed one by one
    annotate = False  # whether to show phases to a profiler

    def now(self) -> Any:
        """Return the moment at which the device has done all it was given; wait for nothing."""
        return time.perf_counter()

    def seconds(self, moments: list[Any]) -> Seconds:
        """Return the seconds from each moment to the next, once the device is idle."""
        return np.diff(moments)

    def wait(self) -> None:
        """Wait until the device is idle."""

    def show(self, phase: Phase) -> None:
        """Show a profiler, if there is one, which phase has just ended."""


class Clock:
    """Times one window on all ranks together.

    Every rank calls `start`, iterates its loader through `batches`, calls `step_done` after each
    optimiser step, and calls `stop`. The energy `meter` is read outside the timed part.
    """

    def __init__(
        self, group: Group, timestamps: HostTimestamps, meter: EnergyMeter | None = None
    ) -> None:
        self.group = group
        self._timestamps = timestamps
        self._meter = meter
        self._moments: list[Any] = []
        self._phases: list[Phase] = []
        self._has_gradients = False

    def start(self) -> None:
        """Open the window."""
        self._timestamps.wait()
        self.group.barrier()
        if self._meter:  # after a barrier, to count nobody's waiting; before one, to delay nobody
            self._meter.start()
            self.group.barrier()
        self._timestamps.wait()  # a barrier of NCCL is itself work on the device
        self._cpu_start = cpu_seconds()
        self._start = time.perf_counter()
        self._moments.append(self._timestamps.now())

    def batches(self, loader: Iterator[Item]) -> Iterator[Item]:
        """Yield the batches of `loader`; mark when each is asked for and when it is there."""
        while True:
            self._mark("compute")
            try:
                batch = next(loader)
            except StopIteration:
                return
            self._mark("data")
            self._has_gradients = False
            yield batch

    def backward_done(self) -> None:
        """Mark the last gradient of a backward pass."""
        self._has_gradients = True
        self._mark("compute")

    def gradients_averaged(self) -> None:
        """Mark that the mean of the gradients over ranks is there; wait for nothing."""
        self._mark("communication" if self._has_gradients else "compute")

    def step_done(self) -> None:
        """Mark the end of a step; wait for nothing."""
        self._mark("update")

    def _mark(self, phase: Phase) -> None:
        self._moments.append(self._timestamps.now())
        self._phases.append(phase)
        self._timestamps.show(phase)

    def stop(self) -> EpochTiming:
        """Close the window and compare the ranks."""
        self._timestamps.wait()
        own_s = time.perf_counter() - self._start
        self.group.barrier()
        self._timestamps.wait()
        wall_s = time.perf_counter() - self._start
        cpu_s = cpu_seconds() - self._cpu_start
        energy_j = self._meter.stop() if self._meter else None
        return self._over_ranks(wall_s, own_s, cpu_s, energy_j)

    def _over_ranks(
        self, wall_s: float, own_s: float, cpu_s: float, energy_j: float | None
    ) -> EpochTiming:
        seconds = self._timestamps.seconds(self._moments)
        table = by_step(self._phases, seconds)
        steps = table.sum(axis=1) if self._timestamps.has_step_times else np.empty(0)
        median, p95 = np.percentile(steps, [50, 95]) if len(steps) else (0.0, 0.0)
        data_s = float(seconds[np.array(self._phases) == "data"].sum())
        wall_s, own_s_max, data_s, median, p95 = self.group.reduce(
            [wall_s, own_s, data_s, median, p95], "max"
        ).tolist()
        return EpochTiming(
            wall_s=wall_s,
            cpu_s=float(self.group.reduce(cpu_s)),
            data_s=data_s,
            rank_wall_s_min=float(self.group.reduce(own_s, "min")),
            rank_wall_s_max=own_s_max,
            step_s_median=median if len(steps) else None,
            step_s_p95=p95 if len(steps) else None,
            energy_j=energy_j,
            spent=self._spent(seconds, table, wall_s) if "communication" in self._phases else None,
        )

    def _spent(self, seconds: Seconds, table: Seconds, wall_s: float) -> Spent:
        """Return the mean over ranks of each rank's `table` of `by_step`."""
        first_batch = seconds[self._phases.index("data")]
        transfer = sum(self.group.reduce(table[:, PHASES.index("communication")], "min").tolist())
        own = [first_batch, *table.sum(axis=0)]
        start, *mean = (one / self.group.world_size for one in self.group.reduce(own).tolist())
        spent = dict(zip(PHASES, mean, strict=True))
        return Spent(
            start_s=start,
            data_s=spent["data"] - start,
            compute_s=spent["compute"],
            transfer_s=transfer,
            waiting_s=spent["communication"] - transfer,
            update_s=spent["update"],
            end_s=wall_s - sum(mean),
        )


def cpu_seconds() -> float:
    """Return the CPU time of this process and its children so far, user and system.

    Those that have ended count too, once their parent has waited for them: loader processes may
    end within a window.
    """
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
