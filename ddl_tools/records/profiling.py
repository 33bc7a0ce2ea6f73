"""Profiles of runs: ``profile.json``, spans of time, and what CUDA kernels do by their names."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from ddl_core.config import RunSpec
from ddl_core.errors import RecordError, SpecError
from ddl_tools.names import plural
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.storage import (
    Count,
    Duration,
    Index,
    Line,
    Number,
    Strict,
    validated,
    write_atomically,
)
from ddl_tools.records.stored import stored

# Steps in which the profiler gets ready, results thrown away. As many as `fairness.py` watches
# closely after a start, so that a resumed run is not profiled with that.
WARMUP = 3

# A name says who wrote the kernel, not who launched it, so "other" also holds:
#
# - ATen's elementwise kernels, even where a loader runs them (uint8 to float, normalise);
# - matrix products: cuBLAS has them for linear layers, cuDNN for 1 x 1 convolutions;
# - copies into and out of Horovod's and DDP's buckets, which are compute of this GPU.
#
# NCCL 2.13 and RCCL named every kernel SendRecv or Generic (NVIDIA/nccl#714, #739, ROCm/rccl#505):
# all-reduce is then counted as "communication".
Kind = Literal["allreduce", "communication", "data", "cudnn", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# In this order: the first that is found decides.
_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    # Kernels since NCCL 2.0 (ncclAllReduceRingLLKernel_*, ncclKernel_AllReduce_*,
    # ncclDevKernel_AllReduce_*, ncclSymkDevKernel_AllReduce_*), and torch's names of the calls.
    ("allreduce", re.compile(r"\bnccl\w*AllReduce|\b(nccl|gloo):all_?reduce")),
    ("communication", re.compile(r"\bnccl[A-Z]|\b(nccl|gloo):")),
    ("data", re.compile(r"\bdali::|\bnvjpeg|\bnvimgcodec::|\bculj92::")),
    # Most carry the library's name, at least in an argument's type. The others are its
    # convolutions (forward, data and weight gradients), their layout changes and batch norms.
    (
        "cudnn",
        re.compile(
            r"cudnn|[fdw](?:prop|grad)(?![a-z])|wgrad2d|implicit_convolve|convolve_common_engine"
            r"|winograd|conv2d_grouped_direct|nchwToNhwc|nhwcToNchw|\bbn_[fb]w_|\bbatchnorm_[fb]wtr_"
        ),
    ),
)


def first_step(spec: RunSpec, steps: int) -> int:
    """Return the first step to watch: the window lies in the middle of the epoch.

    At its beginning a loader has batches in store, at its end it has no more to make. `SpecError`
    if the epoch's `steps` are too few.
    """
    if steps < WARMUP + spec.profile_steps:
        raise SpecError(
            f"profile_steps = {spec.profile_steps}, but an epoch has {plural(steps, 'step')}, of "
            f"which the profiler needs {WARMUP} to get ready; at most {max(0, steps - WARMUP)} can "
            "be watched: choose fewer, or more training images"
        )
    return max(WARMUP, (steps - spec.profile_steps) // 2)


@lru_cache(maxsize=4096)
def kind(name: str) -> Kind:
    """Return the kind of a kernel by its demangled name, which may be cut off at its end.

    ``communication`` is any collective but all-reduce; ``data`` is decoding and augmentation by
    DALI, nvJPEG or nvImageCodec.
    """
    return next((found for found, pattern in _PATTERNS if pattern.search(name)), "other")


PROFILE_VERSION = 1


class Shares(Strict):
    """Shares of the profiled time of a rank, 0 to 1; their sum is 1."""

    compute: Number = Field(description="GPU: kernels of the training; CPU: operators")
    transfer: Number = Field(
        description="exposed communication of the last rank to arrive in each step"
    )
    waiting: Number = Field(
        description="additional exposed communication: waiting for slower ranks"
    )
    copies: Number = Field(description="copies to, from and on the GPU; 0 on the CPU")
    data: Number = Field(description="waiting for the next batch")
    other: Number = Field(description="the host in another call")
    idle: Number = Field(description="nothing that the profiler sees")


class RankProfile(Strict):
    """One rank."""

    rank: Index = Field(description="number of the rank")
    window_s: Duration = Field(
        gt=0, description="from the first profiled step to the end of the last"
    )
    shares: Shares = Field(description="shares of this time")
    overlapped: Number | None = Field(
        description="share of communication during compute, a part of `compute`; null if unknown"
    )
    exposed_s: list[Duration] = Field(
        max_length=10_000, description="exposed communication of each profiled step (s)"
    )
    kernels: dict[Kind, Number] | None = Field(
        description="shares of CUDA kernel time, the paper's Table 2; null on the CPU"
    )


class ProfileRecord(Strict):
    """``profile.json``."""

    profile_version: Index = Field(PROFILE_VERSION, description="version of this file")
    run_id: Line = Field(description="name of the run")
    device: Literal["cpu", "cuda"] = Field(description="device of the ranks")
    epoch: Index = Field(description="profiled epoch: the last")
    first_step: Count = Field(description="first profiled step, from 0")
    steps: Count = Field(description="number of profiled steps")
    overlapped_missing: Line | None = Field(
        description="why `overlapped` is null in all ranks; null if it is not"
    )
    ranks: list[RankProfile] = Field(
        max_length=10**6, description="an entry for each rank, in order"
    )


def write_profile(directory: Path, record: ProfileRecord) -> None:
    """Write ``profile.json`` of a run atomically."""
    text = record.model_dump_json(indent=1) + "\n"
    write_atomically(RunFiles(directory).profile, text)


def read_profile(directory: Path) -> ProfileRecord:
    """Read the profile of a run strictly; `RecordError` where that is not possible."""
    run = stored(directory)
    found = run.profile()
    if found is None:
        path = directory / run.profile_file
        raise RecordError(f"{path} is missing", remedy="a run has one if profile_steps > 0")
    return validated(*found, ProfileRecord, "profile", PROFILE_VERSION)


Spans = NDArray[Any]  # (n, 2): start and end, int64 nanoseconds or float64 seconds

Part = Literal["compute", "communication", "copies", "data", "other", "idle"]
PARTS: tuple[Part, ...] = get_args(Part)

Seconds = NDArray[Any]  # float64


def union(spans: ArrayLike) -> Spans:
    """Return the time that at least one span covers: (m, 2), sorted, with gaps between.

    `spans` are (n, 2), start and end in any unit and order, and may overlap. They are half-open:
    a span that ends where it starts covers nothing.
    """
    spans = np.asarray(spans).reshape(-1, 2)
    spans = spans[spans[:, 0] < spans[:, 1]]
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    covered_to = np.maximum.accumulate(spans[:, 1])
    first = np.append(True, spans[1:, 0] > covered_to[:-1])
    last = np.append(first[1:], True)
    return np.column_stack([spans[first, 0], covered_to[last]])


def length(spans: ArrayLike) -> float:
    """Return the time that at least one span covers, in the spans' unit; 0 without spans."""
    merged = union(spans)
    return float((merged[:, 1] - merged[:, 0]).sum())


def intersect(a: ArrayLike, b: ArrayLike) -> Spans:
    """Return the time that both `a` and `b` cover; shapes as in `union`."""
    a, b = union(a), union(b)
    if not len(a) or not len(b):
        return a[:0]
    # Within a union starts and ends both rise, so what meets a span of `a` is one run of `b`.
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")
    runs = np.searchsorted(b[:, 0], a[:, 1], side="left") - first
    of_a = np.repeat(np.arange(len(a)), runs)
    of_b = np.arange(len(of_a)) + np.repeat(first - (np.cumsum(runs) - runs), runs)
    return np.column_stack([np.maximum(a[of_a, 0], b[of_b, 0]), np.minimum(a[of_a, 1], b[of_b, 1])])


def subtract(a: ArrayLike, b: ArrayLike) -> Spans:
    """Return the time that `a` covers and `b` does not; shapes as in `union`."""
    a, b = union(a), union(b)
    if not len(a) or not len(b):
        return a
    edges = np.concatenate([a[:1, 0], b.ravel(), a[-1:, 1]])
    gaps = edges.reshape(-1, 2)  # before, between and after the spans of `b`
    return intersect(a, gaps[gaps[:, 0] < gaps[:, 1]])


@dataclass(frozen=True)
class Timeline:
    """Activity of one rank: spans in seconds, as for `union`.

    `steps` (n + 1,) are the edges of the watched steps. In `waits` the rank has its gradients and
    waits for their mean over ranks; in `data` it waits for its next batch; `calls` are the rest.
    """

    steps: Seconds
    compute: Spans
    collectives: Spans
    copies: Spans
    waits: Spans
    data: Spans
    calls: Spans

    def parts(self) -> dict[Part, Spans]:
        """Divide the window: each moment belongs to the first kind that covers it, else to idle.

        Collectives come before copies, which are often their own. Waiting for the mean comes after
        copies: a rank that copies does not only wait.
        """
        order: tuple[tuple[Part, Spans], ...] = (
            ("compute", self.compute),
            ("communication", self.collectives),
            ("copies", self.copies),
            ("communication", self.waits),
            ("data", self.data),
            ("other", self.calls),
        )
        left = self._window()
        found: dict[Part, list[Spans]] = {part: [] for part in PARTS}
        for part, spans in order:
            found[part].append(intersect(left, spans))
            left = subtract(left, spans)
        found["idle"].append(left)
        return {part: union(np.concatenate(pieces)) for part, pieces in found.items()}

    def overlapped_s(self) -> float:
        """Return the time in which a collective was on its way while the rank computed."""
        return length(intersect(intersect(self.collectives, self.compute), self._window()))

    def by_step(self, spans: Spans) -> Seconds:
        """Return how much of each step `spans` cover, (n,)."""
        merged = union(spans)
        if not len(merged):
            return np.zeros(len(self.steps) - 1)
        grows = np.column_stack([np.zeros(len(merged)), merged[:, 1] - merged[:, 0]])
        return np.diff(np.interp(self.steps, merged.ravel(), np.cumsum(grows)))

    def _window(self) -> Spans:
        return np.array([[self.steps[0], self.steps[-1]]])


def device_steps(host: Seconds, launched: Seconds, ends: Seconds) -> Seconds:
    """Return when a device had done the work that was launched before each edge of the steps.

    `host` (n + 1,) are the edges on the host, which runs ahead. `launched` and `ends` (work,) are
    the times of launch, -inf if before all edges, and of the end on the device.
    """
    order = np.argsort(launched)
    done = np.maximum.accumulate(np.append(-np.inf, ends[order]))
    return np.maximum(host, done[np.searchsorted(launched[order], host)])


def transfer_and_waiting(exposed: Seconds) -> tuple[float, Seconds]:
    """Divide exposed communication, (ranks, steps), into moving data and waiting.

    The transfer of a step is that of the rank that came last: it waited for no other. It is the
    same for all ranks; the rest is their waiting, (ranks,).
    """
    transfer = float(exposed.min(axis=0).sum())
    return transfer, (exposed - exposed.min(axis=0)).sum(axis=1)
