"""What a file of Nsight Systems says of one process on one GPU, whatever kind of file it is."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddl_core.records.intervals import Spans
from ddl_core.records.kernel_names import KINDS, Kind, kind
from ddl_core.records.timeline import Timeline, device_steps

NS_PER_S = 1e9


def nothing() -> Spans:
    """Return no spans."""
    return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class Marks:
    """What the training loop said of itself; spans in nanoseconds.

    `data` and `waits` are as in `ddl_core.records.timeline.Timeline`; `window` (1, 2) is the epoch
    that is looked at, or empty; `updates` (n,) are the times at which the host ended each step.
    """

    data: Spans
    waits: Spans
    window: Spans
    updates: NDArray[np.int64]


@dataclass(frozen=True)
class Recorded:
    """One process on one GPU.

    Parameters
    ----------
    kernels : pandas.DataFrame
        ``name`` and ``total_ns``; with a timeline a row per launch, with ``start`` and ``end``, and
        where marks are, ``launched``, when the host called for it, NaN if unknown.
    gpu, pid
        Its number or name, and the process, where the file tells.
    copies, calls
        Copies of memory, and calls of CUDA by the host; spans in nanoseconds.
    marks
        None if none were recorded.
    """

    kernels: pd.DataFrame
    gpu: str | None = None
    pid: int | None = None
    copies: Spans = field(default_factory=nothing)
    calls: Spans = field(default_factory=nothing)
    marks: Marks | None = None

    @cached_property
    def kinds(self) -> "pd.Series":
        """What each kernel does."""
        return self.kernels["name"].map(kind)

    def kernel_shares(self) -> dict[Kind, float]:
        """Return the paper's shares: of the sum of all kernels' durations, overlapping or not.

        Of those that begin in the window, where the file has times.
        """
        counted = self.kernels
        if "start" in counted:
            counted = counted[counted["start"].between(*self._window(), inclusive="left")]
        sums = counted["total_ns"].groupby(self.kinds).sum()
        return {name: float(sums.get(name, 0) / sums.sum()) for name in KINDS}

    def timeline(self) -> Timeline | None:
        """Return what went on when, in seconds; None if the file has no times."""
        if "start" not in self.kernels:
            return None
        window = self._window()
        marks = self.marks or Marks(nothing(), nothing(), nothing(), np.empty(0, np.int64))
        spans = {
            "compute": self._of("cudnn", "other"),
            "collectives": self._of("allreduce", "communication"),
            "copies": self.copies,
            "waits": marks.waits,
            "data": np.concatenate([marks.data, self._of("data")]),
            "calls": self.calls,
        }
        zero = window[0]
        return Timeline(
            steps=(self._steps(window, marks.updates) - zero) / NS_PER_S,
            **{name: (part - zero) / NS_PER_S for name, part in spans.items()},
        )

    def _steps(self, window: Spans, updates: NDArray[np.int64]) -> NDArray[Any]:
        """Return the edges of the steps on the device; all together they are the window."""
        inner = updates[(window[0] < updates) & (updates < window[1])][:-1]
        if not len(inner):
            return window
        launched = self.kernels["launched"].fillna(-np.inf).to_numpy(np.float64)
        ends = self.kernels["end"].to_numpy(np.float64)
        on_device = device_steps(inner.astype(np.float64), launched, ends)
        return np.concatenate([window[:1], np.minimum(on_device, window[1]), window[1:]])

    def _of(self, *kinds: Kind) -> Spans:
        return self.kernels[self.kinds.isin(kinds)][["start", "end"]].to_numpy(np.int64)

    def _window(self) -> Spans:
        """Return start and end of what is looked at: without marks, of all work on the GPU."""
        if self.marks is not None and len(self.marks.window):
            return self.marks.window[-1]
        work = np.concatenate([self.kernels[["start", "end"]].to_numpy(np.int64), self.copies])
        return np.array([work[:, 0].min(), work[:, 1].max()])
