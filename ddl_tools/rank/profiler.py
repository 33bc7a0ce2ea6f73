"""torch.profiler on a few steps of one epoch, on every rank: a trace each, and one record.

Nothing of this file is imported in a run that is not profiled.
"""

import math
from typing import Self

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from ddl_core.config import RunSpec
from ddl_core.strategies.base import Strategy
from ddl_tools.rank.kineto import kernel_shares, read_trace, timeline
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.profiling import (
    KINDS,
    PARTS,
    WARMUP,
    ProfileRecord,
    RankProfile,
    Seconds,
    Shares,
    first_step,
    transfer_and_waiting,
    write_profile,
)

HIDDEN = (
    "this framework's operations on the CPU leave no trace: what overlaps with compute is unknown"
)


class Profiler:
    """Watches one epoch of one rank; a context to train in, with `step` called after each step.

    All ranks of `strategy` profile at once; the epoch has so many `steps`.
    """

    def __init__(self, spec: RunSpec, strategy: Strategy, steps: int) -> None:
        self._spec, self._strategy = spec, strategy
        self._first = first_step(spec, steps)
        self._on_gpu = strategy.device.type == "cuda"
        seen = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self._on_gpu
        self._profile = profile(
            activities=seen,
            schedule=schedule(
                wait=self._first - WARMUP, warmup=WARMUP, active=spec.profile_steps, repeat=1
            ),
        )

    def __enter__(self) -> Self:
        self._profile.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._profile.stop()

    def step(self) -> None:
        """Note the end of a step."""
        self._profile.step()

    def write(self, files: RunFiles, epoch: int) -> None:
        """Write this rank's trace, and on rank 0 the record of all. A collective.

        `DataError` if the trace is not what it should be. `RecordError` if a file cannot be
        written.
        """
        group, spec = self._strategy, self._spec
        trace = files.trace(group.rank)
        trace.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(trace))
        events = read_trace(trace)
        line = timeline(events, spec.profile_steps, self._on_gpu)
        kernels = kernel_shares(events, line.steps) if self._on_gpu else {}
        # NCCL's collectives are always in the trace, Gloo's if torch runs them.
        seen = group.world_size == 1 or self._on_gpu or torch.distributed.is_initialized()
        parts = line.parts()
        own = np.concatenate(
            [
                [line.by_step(parts[name]).sum() for name in PARTS],
                [line.overlapped_s() if seen else math.nan],
                [kernels.get(name, math.nan) for name in KINDS],
                line.by_step(parts["communication"]),
            ]
        )
        rows = np.zeros((group.world_size, len(own)))
        rows[group.rank] = own
        rows = group.reduce(rows)
        if group.rank == 0:
            record = ProfileRecord(
                run_id=spec.run_id,
                device="cuda" if self._on_gpu else "cpu",
                epoch=epoch,
                first_step=self._first,
                steps=spec.profile_steps,
                overlapped_missing=None if seen else HIDDEN,
                ranks=ranks(rows),
            )
            write_profile(files.directory, record)


def ranks(rows: Seconds) -> list[RankProfile]:
    """Return what each rank's row says once the ranks are compared.

    `rows` are (ranks, n): seconds of `PARTS`; seconds of overlap; shares of `KINDS` in kernel time;
    seconds of exposed communication of each step. NaN is unknown.
    """
    parts, overlapped, kernels, exposed = np.split(
        rows, np.cumsum([len(PARTS), 1, len(KINDS)]), axis=1
    )
    windows = parts.sum(axis=1)
    transfer, waiting = transfer_and_waiting(exposed)
    found = []
    for rank, window in enumerate(windows):
        seconds = dict(zip(PARTS, parts[rank], strict=True))
        del seconds["communication"]
        seconds |= {"transfer": transfer, "waiting": waiting[rank]}
        known = dict(zip(KINDS, kernels[rank].tolist(), strict=True))
        overlap = float(overlapped[rank, 0])
        found.append(
            RankProfile(
                rank=rank,
                window_s=window,
                shares=Shares(**{name: value / window for name, value in seconds.items()}),
                overlapped=None if math.isnan(overlap) else overlap / window,
                exposed_s=exposed[rank].tolist(),
                kernels=None if math.isnan(sum(known.values())) else known,
            )
        )
    return found
