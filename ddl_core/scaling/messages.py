"""What each framework sends, and when: how much of it backward hides.

- PyTorch-DDP cuts the gradients, last layer first, into buckets: each closes as it reaches its cap
  (1 MiB the first, then ``bucket_mb``), and they are reduced one after the other during backward.
- Horovod wakes up every ``cycle_ms``. What is ready on all ranks by then is fused, up to
  ``fusion_mb``, and reduced; ranks agree on it first, so its kernels hold no waiting.
- DeepSpeed reduces everything after backward at stage 0. At stages 1 and 2 it moves half as much
  again: it all-reduces the gradients and gathers the weights. Its bucket holds 5e8 numbers, more
  than these networks have, so that nothing overlaps there either.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddl_core.errors import SpecError
from ddl_core.scaling.checks import at_least, positive
from ddl_core.scaling.gradients import Gradients, of_run
from ddl_core.spec.run import RunSpec

MIB = 2**20
DDP_BUCKET_MB = 25.0  # torch's default, and only then the first bucket is a small one
MODELLED = ("single", "ddp", "horovod", "deepspeed")
SHARDED = 1.5  # times the bytes of an all-reduce: DeepSpeed's stages 1 and 2


@dataclass(frozen=True)
class Training:
    """What is trained, and how its framework communicates. Sizes in MiB, as `RunSpec` has them.

    ``images`` are those of an epoch; 0 means that epochs are not of interest.
    """

    gradients: Gradients
    strategy: str = "ddp"
    local_batch_size: int = 64
    images: int = 0
    bucket_mb: float = DDP_BUCKET_MB
    fusion_mb: float = 128.0
    cycle_ms: float = 1.0
    zero_stage: int = 0

    def __post_init__(self) -> None:
        if self.strategy not in MODELLED:
            raise SpecError(
                f"strategy={self.strategy!r}: when it sends what is not modelled; "
                f"allowed: {', '.join(MODELLED)}"
            )
        positive(local_batch_size=self.local_batch_size, bucket_mb=self.bucket_mb)
        positive(fusion_mb=self.fusion_mb, cycle_ms=self.cycle_ms)
        at_least(0, images=self.images, zero_stage=self.zero_stage)
        if self.zero_stage > 2:
            raise SpecError(
                f"zero_stage={self.zero_stage}: when it gathers weights is not modelled; "
                "allowed: 0, 1, 2"
            )

    @classmethod
    def of(cls, spec: RunSpec, images: int = 0) -> "Training":
        """Return what a run trains; `images` are those that it reads in an epoch.

        Raises
        ------
        SpecError
            If the gradients of its network are not known here.
        """
        return cls(
            of_run(spec),
            spec.strategy,
            spec.local_batch_size * spec.accumulation,
            images,
            spec.ddp_bucket_mb,
            spec.horovod_fusion_mb,
            spec.horovod_cycle_ms,
            spec.deepspeed_zero_stage,
        )


class Message(NamedTuple):
    """Bytes that are reduced together, and the share of backward after which they may be."""

    nbytes: float
    ready: float


def messages(training: Training) -> list[Message]:
    """Return what is sent in a step, in order; Horovod's tensors before they are fused."""
    gradients = training.gradients
    if training.strategy == "single":
        return []
    if training.strategy == "ddp":
        return _buckets(gradients, training.bucket_mb)
    if training.strategy == "horovod":
        pairs = zip(gradients.nbytes, gradients.ready, strict=True)
        return [Message(float(nbytes), float(ready)) for nbytes, ready in pairs]
    factor = SHARDED if training.zero_stage else 1.0
    return [Message(factor * gradients.total, 1.0)]


def _buckets(gradients: Gradients, bucket_mb: float) -> list[Message]:
    first = 1.0 if bucket_mb == DDP_BUCKET_MB else bucket_mb
    limit, found, size = first * MIB, [], 0.0
    for nbytes, ready in zip(gradients.nbytes, gradients.ready, strict=True):
        size += float(nbytes)
        if size >= limit:
            found.append(Message(size, float(ready)))
            limit, size = bucket_mb * MIB, 0.0
    return [*found, Message(size, 1.0)] if size else found


def reduced_in_turn(
    ready_s: list[NDArray[np.float64]], took_s: list[NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """Return when each message is reduced, one after the other, none before it is ready."""
    ends: list[NDArray[np.float64]] = []
    for ready, took in zip(ready_s, took_s, strict=True):
        ends.append((np.maximum(ready, ends[-1]) if ends else ready) + took)
    return ends


def reduced_in_cycles(
    ready_s: NDArray[np.float64],
    nbytes: NDArray[np.float64],
    seconds: Callable[[float], float],
    training: Training,
) -> tuple[float, float]:
    """Return when Horovod has reduced the last tensor, and the seconds of all its messages.

    Parameters
    ----------
    ready_s
        When each tensor is ready on all ranks, ascending, shape (T,).
    nbytes
        Bytes of each, shape (T,).
    seconds
        The time that a message of so many bytes takes.
    training
        Its cycle and fusion. Cycles are out of step with backward: the first one comes after half
        of one, the mean.
    """
    cycle, limit = training.cycle_ms / 1e3, training.fusion_mb * MIB
    moved = np.concatenate([[0.0], np.cumsum(nbytes)])
    now, sent, end, busy = cycle / 2, 0, 0.0, 0.0
    while sent < len(ready_s):
        if ready_s[sent] > now:
            now += cycle * np.ceil((ready_s[sent] - now) / cycle)
        there = int(np.searchsorted(ready_s, now, side="right"))
        room = int(np.searchsorted(moved, moved[sent] + limit, side="right")) - 1
        last = max(min(max(there, sent + 1), room), sent + 1)
        took = seconds(float(moved[last] - moved[sent]))
        end, busy = now + took, busy + took
        now, sent = max(now + cycle, end), last
    return float(end), busy
