"""What one epoch of training or one evaluation gave."""

from collections.abc import Callable
from dataclasses import dataclass

from ddl_core.rank.timing import EpochTiming

OnStep = Callable[[int, int], None]
"""Called after each step with the steps done and the steps of the epoch."""


@dataclass(frozen=True)
class Outcome:
    """One epoch of training or one evaluation, over all ranks.

    `loss` is the mean over samples, null if nothing was trained; `top1` and `top5` are shares of
    the images, from 0 to 1, and null for training. `lr` is that of the last update, null for
    evaluation. `ids_sha256` is a hash
    of the set of images used, null if they are made up. `device_waits` counts the framework's own
    device synchronisations on this rank, null for evaluation and for a compiled network.
    """

    window: EpochTiming
    steps: int
    samples: int
    corrupt_images: int
    rescued_images: int | None = None
    loss: float | None = None
    top1: float | None = None
    top5: float | None = None
    lr: float | None = None
    ids_sha256: str | None = None
    device_waits: int | None = None
