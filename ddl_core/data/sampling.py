"""Which rank sees which image when: the same for every loader and every strategy.

Training takes one permutation of the whole set per epoch. With V = world_size * accumulation
(virtual) workers of batch B, worker v takes positions ``[(s V + v) B, (s V + v + 1) B)`` of it in
step s, and the incomplete last step is dropped. So the images of a step do not depend on how the
V workers are spread over ranks. Evaluation takes every image once, without padding.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ddl_core.config import IMAGENET_EVAL_IMAGES, IMAGENET_TRAIN_IMAGES, RunSpec
from ddl_core.errors import SpecError
from ddl_core.seeds import derive_seed

Indices = npt.NDArray[np.int64]
Split = Literal["train", "eval"]


def spread(wanted: int, found: int) -> Indices:
    """Return `wanted` of `found` positions at even distances: of a sorted list, all classes."""
    return np.arange(wanted, dtype=np.int64) * found // wanted


def steps_per_epoch(spec: RunSpec, images: int) -> int:
    """Return the optimiser steps of one epoch over `images` images.

    Raises
    ------
    SpecError
        If there is not even one full global batch.
    """
    steps = images // spec.global_batch_size
    if steps == 0:
        raise SpecError(
            f"the global batch of {spec.global_batch_size} images ({spec.virtual_workers} workers "
            f"x local_batch_size {spec.local_batch_size}) is larger than the training set of "
            f"{images}; lower local_batch_size or accumulation, or use more images"
        )
    return steps


def epoch_order(spec: RunSpec, images: int, epoch: int) -> Indices:
    """Return the order of all training images in one epoch."""
    seed = derive_seed("order", spec.seed, spec.repeat, epoch)
    return np.random.default_rng(seed).permutation(images)


def train_batches(spec: RunSpec, images: int, epoch: int, rank: int) -> Iterator[Indices]:
    """Return an iterator of the image indices of each micro-batch of one rank, in order.

    The order is drawn at the call, not with the first batch: 20 ms for ImageNet, which would be
    some per cent of a short epoch's window.
    """
    permutation = epoch_order(spec, images, epoch)
    batch = spec.local_batch_size
    workers = (
        step * spec.virtual_workers + rank * spec.accumulation + micro
        for step in range(steps_per_epoch(spec, images))
        for micro in range(spec.accumulation)
    )
    return (permutation[worker * batch : (worker + 1) * batch] for worker in workers)


def eval_batches(spec: RunSpec, images: int, rank: int, world_size: int) -> Iterator[Indices]:
    """Yield the image indices of each evaluation batch of one rank; the last may be smaller."""
    own = np.arange(rank, images, world_size)
    for start in range(0, len(own), spec.local_batch_size):
        yield own[start : start + spec.local_batch_size]


def count_batches(spec: RunSpec, split: Split, images: int, rank: int, world_size: int) -> int:
    """Return how many batches `train_batches` or `eval_batches` yields.

    Raises
    ------
    SpecError
        As `steps_per_epoch`.
    """
    if split == "train":
        return steps_per_epoch(spec, images) * spec.accumulation
    own = len(range(rank, images, world_size))
    return -(-own // spec.local_batch_size)


class Counts(NamedTuple):
    """How much data of one split there are."""

    images: int  # of all ranks
    batches: int  # micro-batches of one rank, in an epoch
    own: int  # images of that rank in an evaluation


def made_up(spec: RunSpec, split: Split, rank: int, world_size: int) -> Counts:
    """Return how much there is of data that no file holds: ImageNet's numbers, if none are asked.

    Raises
    ------
    SpecError
        As `steps_per_epoch`.
    """
    if split == "train":
        images = spec.train_images or IMAGENET_TRAIN_IMAGES
        images *= spec.passes(images)
    else:
        images = spec.eval_images or IMAGENET_EVAL_IMAGES
    batches = count_batches(spec, split, images, rank, world_size)
    return Counts(images, batches, len(range(rank, images, world_size)))
