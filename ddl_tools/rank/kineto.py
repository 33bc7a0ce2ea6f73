"""Traces of torch.profiler (Kineto's JSON) read into the timeline of one rank; needs no torch."""

import gzip
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddl_core.errors import DataError
from ddl_core.timing import MARK, Phase
from ddl_tools.records.profiling import (
    KINDS,
    Kind,
    Seconds,
    Spans,
    Timeline,
    device_steps,
    kind,
    subtract,
)

STEP = "ProfilerStep#"
"""Before the number of a step: torch.profiler's own span around each."""

# What computes on a CPU. The autograd engine's spans around these also hold what hooks do, and
# c10d's only hand a collective over.
COMPUTE = ("aten::", "mkldnn::", "torchvision::")
LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True)
class Event:
    """One span: seconds since the trace began; `launch` connects a kernel with its call."""

    name: str
    category: str
    thread: Any
    start: float
    end: float
    launch: int | None = None


def read_trace(path: Path) -> list[Event]:
    """Read the spans of a trace.

    `DataError` if it is not a trace, or has no spans.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            content = json.load(file)["traceEvents"]
        whole = [one for one in content if one.get("ph") == "X" and one.get("cat") != "Trace"]
        zero = min(one["ts"] for one in whole)
        return [_event(one, zero) for one in whole]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is no trace of torch.profiler with spans ({type(error).__name__}: {error}); "
            "start the run again"
        ) from None


def _event(one: dict[str, Any], zero: float) -> Event:
    start = (one["ts"] - zero) / 1e6
    launch = one.get("args", {}).get("correlation")
    end = start + one.get("dur", 0) / 1e6
    return Event(one["name"], one.get("cat", ""), one["tid"], start, end, launch)


def timeline(events: Sequence[Event], steps: int, on_gpu: bool) -> Timeline:
    """Sort the spans of `steps` watched steps into what they were.

    On a GPU the spans of work are the device's, and a step ends on the device: when all that the
    host has launched in it is done. On the CPU they are the operators of the training thread.
    `DataError` if the trace has other steps, or no kernels where there should be some.
    """
    host = _host_steps(events, steps)
    marked = _marked(events, host[0])
    threads = {one.thread for one in events if _is_mark(one)}
    own = [one for one in events if one.thread in threads]
    calls = _spans(one for one in own if one.category in ("cpu_op", *LAUNCHES))
    waits, data = _intervals(marked["communication"]), _intervals(marked["data"])
    if not on_gpu:
        operators = _spans(
            one for one in own if one.category == "cpu_op" and one.name.startswith(COMPUTE)
        )
        # A loader without processes of its own computes too, but the step waits for it.
        return Timeline(
            steps=host,
            compute=subtract(operators, data),
            collectives=_spans(one for one in events if one.name.startswith("gloo:")),
            copies=_spans([]),
            waits=waits,
            data=data,
            calls=calls,
        )
    kernels = _kernels(events)
    if not any(kernels.values()):
        raise DataError(
            "the profiler saw no CUDA kernel; see whether the driver lets users profile "
            "(NVreg_RestrictProfilingToAdminUsers = 0), and whether another profiler runs"
        )
    copies = [one for one in events if one.category in ("gpu_memcpy", "gpu_memset")]
    collectives = kernels["allreduce"] + kernels["communication"]
    compute = kernels["cudnn"] + kernels["other"]
    return Timeline(
        steps=_device_steps(host, [*compute, *collectives, *copies], events),
        compute=_spans(compute),
        collectives=_spans(collectives),
        copies=_spans(copies),
        waits=waits,
        # The training waits while the GPU does nothing but prepare batches.
        data=np.concatenate([data, _spans(kernels["data"])]),
        calls=calls,
    )


def kernel_shares(events: Sequence[Event], steps: Seconds) -> dict[Kind, float]:
    """Return the share of each kind in the time of all CUDA kernels begun within `steps`.

    The paper's measure (Table 2): durations are added, whatever overlaps, and an idle GPU does not
    show in it.
    """
    spent = {
        group: sum(one.end - one.start for one in found if steps[0] <= one.start < steps[-1])
        for group, found in _kernels(events).items()
    }
    total = sum(spent.values())
    return {group: seconds / total for group, seconds in spent.items()}


def _kernels(events: Iterable[Event]) -> dict[Kind, list[Event]]:
    found: dict[Kind, list[Event]] = {group: [] for group in KINDS}
    for one in events:
        if one.category == "kernel":
            found[kind(one.name)].append(one)
    return found


def _host_steps(events: Iterable[Event], steps: int) -> Seconds:
    found = sorted(
        (one.start, one.end)
        for one in events
        if one.category == "user_annotation" and one.name.startswith(STEP)
    )
    if len(found) != steps:
        raise DataError(f"the trace holds {len(found)} steps, not {steps}; start the run again")
    return np.array([start for start, _ in found] + [found[-1][1]])


def _device_steps(host: Seconds, work: Sequence[Event], events: Iterable[Event]) -> Seconds:
    """Return the edges on the device; without a call in the trace, work was launched before it."""
    called = {one.launch: one.start for one in events if one.category in LAUNCHES}
    launched = np.array([called.get(one.launch, -math.inf) for one in work])
    ends = np.array([one.end for one in work])
    return device_steps(host, launched, ends)


def _is_mark(event: Event) -> bool:
    return event.category == "user_annotation" and event.name.startswith(MARK)


def _marked(events: Iterable[Event], start: float) -> dict[Phase, list[tuple[float, float]]]:
    """Return the intervals that end with a mark, by phase; the first begins at `start`."""
    marks = sorted((one.start, one.name.removeprefix(MARK)) for one in events if _is_mark(one))
    found: dict[Any, list[tuple[float, float]]] = {"data": [], "communication": []}
    for time, phase in marks:
        if time > start:
            found.setdefault(phase, []).append((start, time))
            start = time
    return found


def _spans(events: Iterable[Event]) -> Spans:
    return _intervals([(one.start, one.end) for one in events])


def _intervals(pairs: Sequence[tuple[float, float]]) -> Spans:
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)
