"""Batches as numpy arrays: torch's `native` to the last bit, and `synthetic`."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ddl_core.config import RunSpec
from ddl_core.data.dataset import POOL, ImageSource, MadeUpSource, NamedOnce
from ddl_core.data.image import MEAN, STD, UNREADABLE, CropSampler, crop_image, open_rgb
from ddl_core.data.sampling import Indices, Split
from ddl_core.schedules import derive_seed
from ddl_core.strategies import Group
from ddl_tools.frameworks.protocol import Layout
from ddl_tools.frameworks.weights import Floats

T = TypeVar("T")
Labels = npt.NDArray[np.int32]
Done = Callable[[], bool]
Start = Callable[[Done], Done]
"""Takes a piece of work; returns how to wait for its result."""


def _shape(layout: Layout, size: int) -> tuple[int, int, int]:
    return (3, size, size) if layout == "NCHW" else (size, size, 3)


class Native(ImageSource):
    """Image files or TFRecord, decoded, cut and resized by Pillow; one rank's share of one split.

    ``loader_workers`` threads make images, ``loader_prefetch`` batches ahead of the one that is
    used; they end with the epoch. Without any, the rank itself makes a batch when it is due.

    Parameters
    ----------
    layout
        Of the batches: (n, 3, size, size) or (n, size, size, 3).
    """

    def __init__(
        self, spec: RunSpec, data_dir: Path | None, split: Split, group: Group, layout: Layout
    ) -> None:
        super().__init__(spec, data_dir, split, group.rank, group.world_size)
        self._layout = layout
        self._crops = CropSampler(spec) if split == "train" else None
        self._named = NamedOnce()
        colours = (3, 1, 1) if layout == "NCHW" else (3,)
        self._mean = np.array(MEAN, np.float32).reshape(colours)
        self._std = np.array(STD, np.float32).reshape(colours)

    def __iter__(self) -> Iterator[tuple[Floats, Labels]]:
        """Yield float32 images and labels (n,); the arrays are nobody else's.

        `DataError` if a file has gone, or a label is not one of the run's classes.
        """
        seen = self.seen = []
        with _threads(self._spec.loader_workers) as start:
            started = (self._start(batch, start) for batch in self._plan)
            for images, labels, numbers, made in _ahead(started, self._spec.loader_prefetch):
                self.corrupt_images += sum(done() for done in made)
                seen.append(numbers)
                yield images, labels

    def _start(
        self, batch: list[tuple[int, int]], start: Start
    ) -> tuple[Floats, Labels, Indices, list[Done]]:
        """Start to make a batch."""
        images = np.empty((len(batch), *_shape(self._layout, self._spec.image_size)), np.float32)
        labels = np.empty(len(batch), np.int32)
        made = [
            start(partial(self._make, images, labels, index, *item))
            for index, item in enumerate(batch)
        ]
        return images, labels, np.array([number for _, number in batch], np.int64), made

    def _make(self, images: Floats, labels: Labels, index: int, epoch: int, number: int) -> bool:
        """Put an image into a batch; say whether it is unreadable."""
        content, labels[index] = self._files.read(number)
        try:
            image = open_rgb(content)
        except UNREADABLE as error:
            self._named(self._files.name(number), error)
            images[index] = 0  # the mean colour
            return True
        size = image.height, image.width
        crop = self._crops.draw(epoch, number, *size) if self._crops else None
        pixels = np.asarray(crop_image(image, self._spec.image_size, crop))
        out = images[index]
        out[...] = pixels.transpose(2, 0, 1) if self._layout == "NCHW" else pixels
        out /= np.float32(255)  # torch's operations in their order
        out -= self._mean
        out /= self._std
        return False


@contextmanager
def _threads(count: int) -> Iterator[Start]:
    """Keep threads; without any, work is done when it is waited for.

    At the end, the threads leave undone what they have not begun.
    """
    if count == 0:
        yield lambda work: work
        return
    pool = ThreadPoolExecutor(count, thread_name_prefix="images")
    try:
        yield lambda work: pool.submit(work).result
    finally:
        pool.shutdown(cancel_futures=True)


def _ahead(items: Iterator[T], count: int) -> Iterator[T]:
    """Yield items; ask for `count` more before each."""
    asked = deque(islice(items, count))
    for item in items:
        asked.append(item)
        yield asked.popleft()
    yield from asked


class Synthetic(MadeUpSource):
    """Normal-distributed images with random labels, made once per epoch.

    The numbers are not those of torch's `synthetic`.
    """

    def __init__(
        self, spec: RunSpec, data_dir: Path | None, split: Split, group: Group, layout: Layout
    ) -> None:
        super().__init__(spec, split, group.rank, group.world_size)
        self._rank, self._layout = group.rank, layout
        self._pool: list[tuple[Floats, Labels]] = []
        self._epoch: int | None = None  # of the pool
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Make the batches of an epoch, unless they are there; the old ones are gone before."""
        epoch = epoch if self._split == "train" else 0
        if epoch == self._epoch:
            return
        self._pool, self._epoch = [], epoch
        spec, size = self._spec, self._spec.local_batch_size
        drawn_for = (spec.seed, spec.repeat, epoch, self._rank)
        rng = np.random.default_rng(derive_seed(f"synthetic {self._split}", *drawn_for))
        shape = (size, *_shape(self._layout, spec.image_size))
        for _ in range(min(POOL, self._batches)):
            labels = rng.integers(spec.classes, size=size, dtype=np.int32)
            self._pool.append((rng.standard_normal(shape, np.float32), labels))

    def __iter__(self) -> Iterator[tuple[Floats, Labels]]:
        """Walk round the batches; a last one of evaluation is cut to the images that are left."""
        return self._cut(islice(cycle(self._pool), self._batches))
