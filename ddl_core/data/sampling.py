"""Which rank sees which image when: the same for every loader and every strategy.

Each epoch permutes the training set. With V = world_size * accumulation (virtual) workers of batch
B, worker v takes positions ``[(s V + v) B, (s V + v + 1) B)`` of it in step s. The incomplete last
step is dropped. Evaluation takes every image once, without padding.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from ddl_core.config import IMAGENET_EVAL_IMAGES, IMAGENET_TRAIN_IMAGES, RunSpec
from ddl_core.errors import SpecError
from ddl_core.schedules import derive_seed

Indices = npt.NDArray[np.int64]
Split = Literal["train", "eval"]


def spread(wanted: int, found: int) -> Indices:
    """Return `wanted` of `found` positions at even distances: of a sorted list, all classes."""
    return np.arange(wanted, dtype=np.int64) * found // wanted


def steps_per_epoch(spec: RunSpec, images: int) -> int:
    """Return the optimiser steps of an epoch over `images` images; `SpecError` if there is none."""
    steps = images // spec.global_batch_size
    if steps == 0:
        raise SpecError(
            f"the global batch of {spec.global_batch_size} images (ranks {spec.world_size} x "
            f"accumulation {spec.accumulation} x local_batch_size {spec.local_batch_size}) is "
            f"larger than the training set of {images}; lower local_batch_size or accumulation, "
            "or use more images"
        )
    return steps


def epoch_order(spec: RunSpec, images: int, epoch: int) -> Indices:
    """Return the order of all training images in one epoch."""
    seed = derive_seed("order", spec.seed, spec.repeat, epoch)
    return np.random.default_rng(seed).permutation(images)


def train_batches(spec: RunSpec, images: int, epoch: int, rank: int) -> Iterator[Indices]:
    """Draw an epoch's order; return an iterator of the image indices of a rank's micro-batches."""
    permutation = epoch_order(spec, images, epoch)
    batch = spec.local_batch_size
    workers = (
        step * spec.virtual_workers + rank * spec.accumulation + micro
        for step in range(steps_per_epoch(spec, images))
        for micro in range(spec.accumulation)
    )
    return (permutation[worker * batch : (worker + 1) * batch] for worker in workers)


def eval_indices(images: int, rank: int, world_size: int) -> Indices:
    """Return the images that one rank evaluates, ascending."""
    return np.arange(rank, images, world_size, dtype=np.int64)


def eval_batches(spec: RunSpec, images: int, rank: int, world_size: int) -> Iterator[Indices]:
    """Yield the image indices of each evaluation batch of one rank; the last may be smaller."""
    own = eval_indices(images, rank, world_size)
    for start in range(0, len(own), spec.local_batch_size):
        yield own[start : start + spec.local_batch_size]


def count_batches(spec: RunSpec, split: Split, images: int, rank: int, world_size: int) -> int:
    """Return how many batches `train_batches` or `eval_batches` yields."""
    if split == "train":
        return steps_per_epoch(spec, images) * spec.accumulation
    own = len(range(rank, images, world_size))
    return -(-own // spec.local_batch_size)


def made_up_images(spec: RunSpec, split: Split) -> int:
    """Return the images of a split that no file holds: ImageNet's number, if none is asked for."""
    if split == "eval":
        return spec.eval_images or IMAGENET_EVAL_IMAGES
    images = spec.train_images or IMAGENET_TRAIN_IMAGES
    return images * spec.passes(images)


class BatchSampler:
    """The images that one rank loads; a batch is a list of (epoch, number).

    The order of an epoch is drawn when `epoch` is set, before the clock starts.
    """

    def __init__(
        self, spec: RunSpec, split: Split, images: int, rank: int, world_size: int
    ) -> None:
        self._spec, self._split = spec, split
        self._images, self._rank, self._world_size = images, rank, world_size
        self._count = count_batches(spec, split, images, rank, world_size)
        self._epoch = 0
        self._next: Iterator[Indices] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that iterating begins."""
        return self._epoch

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._epoch = number
        self._next = self._draw()

    def _draw(self) -> Iterator[Indices]:
        if self._split == "train":
            return train_batches(self._spec, self._images, self._epoch, self._rank)
        return eval_batches(self._spec, self._images, self._rank, self._world_size)

    def numbers(self) -> Indices:
        """Return the images of the epoch, ascending."""
        return np.unique(np.concatenate([np.empty(0, np.int64), *self._draw()]))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        batches, self._next = self._next or self._draw(), None
        epoch = self._epoch
        for indices in batches:
            yield [(epoch, index) for index in indices.tolist()]
