"""The learning rate and the seeds of random numbers: pure functions, without torch."""

import math
from zlib import crc32

import numpy as np

from ddl_core.config import RunSpec

# Aach et al. 2023, "Learning rate scheduling": divided by ten at epochs 30, 60 and 80 of 90.
STEP_MILESTONES = (30 / 90, 60 / 90, 80 / 90)
STEP_FACTOR = 0.1
EXPONENTIAL_GAMMA = 0.95  # Aach et al. 2023, eq. 2: per epoch, of 90
PAPER_EPOCHS = 90


def peak_learning_rate(spec: RunSpec) -> float:
    """Return the base rate times the number of (virtual) workers, or its square root.

    Linear: Goyal et al. 2017, section 2.1; Aach et al. 2023 use 0.025 per worker of 64 images.
    Square root: Krizhevsky 2014, arXiv:1404.5997.
    """
    workers = spec.virtual_workers
    return spec.base_lr * (workers if spec.lr_scaling == "linear" else math.sqrt(workers))


def learning_rate(spec: RunSpec, images_seen: int, images_per_epoch: int) -> float:
    """Return the rate of the update after `images_seen` images of all workers.

    `images_per_epoch` are those that one epoch really consumes.
    """
    peak = peak_learning_rate(spec)
    warmup_images = spec.warmup_epochs * images_per_epoch
    after_update = images_seen + spec.global_batch_size
    if after_update <= warmup_images:
        return peak * after_update / warmup_images
    return peak * _decay(spec, images_seen // images_per_epoch)


def _decay(spec: RunSpec, epoch: int) -> float:
    if spec.schedule == "step":
        passed = sum(epoch >= round(at * spec.epochs) for at in STEP_MILESTONES)
        return STEP_FACTOR**passed
    if spec.schedule == "cosine":  # Aach et al. 2023, eq. 1 with LR_min = 0
        return 0.5 * (1 + math.cos(math.pi * epoch / spec.epochs))
    if spec.schedule == "exponential":
        # A shorter training keeps the curve's shape, as with the other two.
        return EXPONENTIAL_GAMMA ** (PAPER_EPOCHS * epoch / spec.epochs)
    return 1.0


def derive_seed(purpose: str, *place: int) -> int:
    """Return a 63-bit seed of a `purpose`, e.g. ``"order"``, and of the numbers of `place`.

    `place` is seed, repeat, epoch, rank, image, ...
    """
    # The length, because SeedSequence does not tell missing numbers from trailing zeros.
    entropy = [crc32(purpose.encode()), len(place), *place]
    state = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))
