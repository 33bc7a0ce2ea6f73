"""The clock. All throughputs come from here, for every strategy and every loader.

A window runs from (barrier, device idle) to (device idle, barrier); its wall time is the maximum
over ranks. Inside it the device is never waited for: on a GPU, marks are events that are read
after the window.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch import nn
from torch.profiler import record_function

from ddl_core.records.profile import MARK, PHASES, Phase
from ddl_core.records.run import Spent
from ddl_core.train.energy.meter import Meter
from ddl_core.train.protocols import Strategy

Item = TypeVar("Item")
Seconds = npt.NDArray[np.float64]


def by_step(phases: list[Phase], seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the seconds of each phase in each step.

    Parameters
    ----------
    phases
        What each interval was, in order of time; ``"update"`` closes a step.
    seconds : (n,)
        How long each interval took.

    Returns
    -------
    (steps, 4)
        In the order of `PHASES`.
    """
    kinds = np.array([PHASES.index(phase) for phase in phases], dtype=np.int64)
    closed = kinds == PHASES.index("update")
    step = np.cumsum(closed) - closed
    table = np.zeros((int(closed.sum()), len(PHASES)))
    within = step < len(table)
    np.add.at(table, (step[within], kinds[within]), seconds[within])
    return table


@dataclass(frozen=True)
class Window:
    """What one window took; seconds.

    `wall_s` is from barrier to barrier, `rank_wall_s_*` are the ranks' own times before the closing
    barrier, `cpu_s` is summed over ranks and their loader processes, and `data_s`, `step_s_median`
    and `step_s_p95` are maxima over ranks. `data_s` is by the marks, so on a GPU it is the time in
    which the device has no batch: not that in which the host waits for the device. `energy_j` is
    joules of all ranks, None if not measured.
    `spent` is None unless gradients were computed.
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


class Clock:
    """Times one window on all ranks together.

    Every rank creates it, calls `start`, iterates its loader through `batches`, calls `step_done`
    after each optimiser step, and calls `stop`. Marks in between say where the time of a step went.

    Parameters
    ----------
    strategy : Strategy
        The ranks that share the window.
    annotate : bool
        Also show the marks to a profiler.
    meter : Meter or None
        Measures energy; it is read outside the timed part.
    """

    def __init__(
        self, strategy: Strategy, annotate: bool = False, meter: Meter | None = None
    ) -> None:
        self._strategy = strategy
        self._annotate = annotate
        self._meter = meter
        self._on_gpu = strategy.device.type == "cuda"
        self._marks: list[Any] = []
        self._phases: list[Phase] = []
        self._has_gradients = False

    def start(self) -> None:
        """Open the window."""
        self._wait_for_device()
        self._strategy.barrier()
        if self._meter:  # after a barrier, to count nobody's waiting; before one, to delay nobody
            self._meter.start()
            self._strategy.barrier()
        self._wait_for_device()  # a barrier of NCCL is itself work on the device
        self._cpu_start = cpu_seconds()
        self._start = time.perf_counter()
        self._marks.append(self._now())

    def batches(self, loader: Iterator[Item]) -> Iterator[Item]:
        """Pass on the batches of `loader`, and mark when each is asked for and when it is there."""
        while True:
            self._mark("compute")
            try:
                batch = next(loader)
            except StopIteration:
                return
            self._mark("data")
            self._has_gradients = False
            yield batch

    @contextmanager
    def watching(self, network: nn.Module) -> Iterator[None]:
        """Mark, inside, when the last gradient of each backward pass is there.

        It is that of the first parameter: gradients come in the opposite order of the forward pass.
        """
        first = next(one for one in network.parameters() if one.requires_grad)
        hook = first.register_post_accumulate_grad_hook(self._gradients_are_there)
        try:
            yield
        finally:
            hook.remove()

    def _gradients_are_there(self, _parameter: torch.Tensor) -> None:
        self._has_gradients = True
        self._mark("compute")

    def gradients_averaged(self) -> None:
        """Mark that the mean of the gradients over ranks is there, without waiting for it."""
        self._mark("communication" if self._has_gradients else "compute")

    def step_done(self) -> None:
        """Mark the end of a step, without waiting for the device."""
        self._mark("update")

    def _mark(self, phase: Phase) -> None:
        self._marks.append(self._now())
        self._phases.append(phase)
        if self._annotate:
            with record_function(MARK + phase):
                pass

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def stop(self) -> Window:
        """Close the window and compare the ranks."""
        self._wait_for_device()
        own_s = time.perf_counter() - self._start
        self._strategy.barrier()
        self._wait_for_device()
        wall_s = time.perf_counter() - self._start
        cpu_s = cpu_seconds() - self._cpu_start
        energy_j = self._meter.stop() if self._meter else None
        return self._over_ranks(wall_s, own_s, cpu_s, energy_j)

    def _over_ranks(
        self, wall_s: float, own_s: float, cpu_s: float, energy_j: float | None
    ) -> Window:
        seconds = self._seconds()
        table = by_step(self._phases, seconds)
        steps = table.sum(axis=1)
        median, p95 = np.percentile(steps, [50, 95]) if len(steps) else (0.0, 0.0)
        data_s = float(seconds[np.array(self._phases) == "data"].sum())
        high = self._reduced([wall_s, own_s, data_s, median, p95], "max")
        low = self._reduced([own_s], "min")
        total = self._reduced([cpu_s], "sum")
        return Window(
            wall_s=high[0],
            cpu_s=total[0],
            data_s=high[2],
            rank_wall_s_min=low[0],
            rank_wall_s_max=high[1],
            step_s_median=high[3] if len(steps) else None,
            step_s_p95=high[4] if len(steps) else None,
            energy_j=energy_j,
            spent=self._spent(seconds, table, high[0]) if "communication" in self._phases else None,
        )

    def _spent(self, seconds: Seconds, table: Seconds, wall_s: float) -> Spent:
        """Return the mean over ranks of what `table` says of this one; see `by_step`."""
        first_batch = seconds[self._phases.index("data")]
        transfer = sum(self._reduced(table[:, PHASES.index("communication")].tolist(), "min"))
        own = [first_batch, *table.sum(axis=0)]
        start, *mean = (one / self._strategy.world_size for one in self._reduced(own, "sum"))
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

    def _seconds(self) -> Seconds:
        if not self._on_gpu:
            return np.diff(self._marks)
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return np.array([before.elapsed_time(after) / 1000 for before, after in pairs])

    def _reduced(self, values: list[float], op: Any) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self._strategy.device)
        result: list[float] = self._strategy.all_reduce(tensor, op).tolist()
        return result

    def _wait_for_device(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self._strategy.device)


def cpu_seconds() -> float:
    """Return the CPU time of this process and its living children so far, user and system.

    It leaves out the time in which other programs had the core, and nothing else: where the core is
    slower for a while, a CPU second does less.
    """
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
