"""The clock. All throughputs come from here, for every strategy and every loader.

A window runs from (barrier, device idle) to (device idle, barrier); its wall time is the maximum
over ranks. Inside it the device is never waited for: on a GPU, steps are timed by events that are
read after the window.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import psutil
import torch

from ddl_core.protocols import Strategy

Item = TypeVar("Item")


@dataclass(frozen=True)
class Window:
    """What one window took; seconds.

    `wall_s` is from barrier to barrier, `rank_wall_s_*` are the ranks' own times before the closing
    barrier, `cpu_s` is summed over ranks and their loader processes, and `data_s`, `step_s_median`
    and `step_s_p95` are maxima over ranks.
    """

    wall_s: float
    cpu_s: float
    data_s: float
    rank_wall_s_min: float
    rank_wall_s_max: float
    step_s_median: float | None
    step_s_p95: float | None


class Clock:
    """Times one window on all ranks together.

    Every rank creates it, calls `start`, iterates its loader through `batches`, calls `step_done`
    after each optimiser step, and calls `stop`.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._on_gpu = strategy.device.type == "cuda"
        self._marks: list[Any] = []
        self._data_s = 0.0

    def start(self) -> None:
        """Open the window."""
        self._wait_for_device()
        self._strategy.barrier()
        self._wait_for_device()  # a barrier of NCCL is itself work on the device
        self._cpu_start = cpu_seconds()
        self._start = time.perf_counter()
        self.step_done()

    def batches(self, loader: Iterator[Item]) -> Iterator[Item]:
        """Pass on the batches of `loader` and count the time spent waiting for them."""
        while True:
            before = time.perf_counter()
            try:
                batch = next(loader)
            except StopIteration:
                return
            finally:
                self._data_s += time.perf_counter() - before
            yield batch

    def step_done(self) -> None:
        """Mark the end of a step, without waiting for the device."""
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def stop(self) -> Window:
        """Close the window and compare the ranks."""
        self._wait_for_device()
        own_s = time.perf_counter() - self._start
        self._strategy.barrier()
        self._wait_for_device()
        wall_s = time.perf_counter() - self._start
        cpu_s = cpu_seconds() - self._cpu_start
        return self._over_ranks(wall_s, own_s, cpu_s)

    def _over_ranks(self, wall_s: float, own_s: float, cpu_s: float) -> Window:
        steps = self._step_seconds()
        median, p95 = np.percentile(steps, [50, 95]) if len(steps) else (0.0, 0.0)
        high = self._reduced([wall_s, own_s, self._data_s, median, p95], "max")
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
        )

    def _step_seconds(self) -> "np.ndarray[Any, np.dtype[np.float64]]":
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

    Wall-clock rates fall when others use the machine; rates per CPU second hardly do.
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
