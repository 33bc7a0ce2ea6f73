"""Batches as numpy arrays: torch's `native` to the last bit, and `synthetic`."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ddl_core.config import RunSpec
from ddl_core.data.dataset import NamedOnce
from ddl_core.data.image import MEAN, STD, UNREADABLE, CropSampler, crop_image, open_rgb
from ddl_core.data.sampling import Indices, Split
from ddl_core.loaders.base import Batch, Loader
from ddl_core.loaders.synthetic import Pool, Synthetic
from ddl_tools.frameworks.protocol import Layout
from ddl_tools.frameworks.weights import Floats

T = TypeVar("T")
Labels = npt.NDArray[np.int32]
Done = Callable[[], bool]
Start = Callable[[Done], Done]
"""Takes a piece of work; returns how to wait for its result."""


class Arrays(Loader):
    """A loader of numpy arrays.

    Parameters
    ----------
    layout
        Of the batches: (n, 3, size, size) or (n, size, size, 3).
    """

    def __init__(
        self,
        spec: RunSpec,
        data_dir: Path | None,
        split: Split,
        rank: int,
        world_size: int,
        layout: Layout,
    ) -> None:
        self._layout = layout
        super().__init__(spec, data_dir, split, rank, world_size)

    @property
    def _shape(self) -> tuple[int, int, int]:
        """Shape of an image."""
        size = self._spec.image_size
        return (3, size, size) if self._layout == "NCHW" else (size, size, 3)


class NativeArrays(Arrays):
    """Image files or TFRecord, decoded, cut and resized by Pillow.

    ``loader_workers`` threads make images, ``loader_prefetch`` batches ahead of the one that is
    used; they end with the epoch. Without any, the rank itself makes a batch when it is due.
    """

    def _prepare(self) -> None:
        self._crops = CropSampler(self._spec) if self._split == "train" else None
        self._named = NamedOnce()
        colours = (3, 1, 1) if self._layout == "NCHW" else (3,)
        self._mean = np.array(MEAN, np.float32).reshape(colours)
        self._std = np.array(STD, np.float32).reshape(colours)

    def _batches(self) -> Iterator[Batch]:
        """Yield float32 images; the arrays are nobody else's."""
        with _threads(self._spec.loader_workers) as start:
            started = (self._start(batch, start) for batch in self._plan)
            for images, labels, numbers, made in _ahead(started, self._spec.loader_prefetch):
                yield images, labels, numbers, sum(done() for done in made)

    def _start(
        self, batch: list[tuple[int, int]], start: Start
    ) -> tuple[Floats, Labels, Indices, list[Done]]:
        """Start to make a batch."""
        images = np.empty((len(batch), *self._shape), np.float32)
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


class SyntheticArrays(Arrays, Synthetic):
    """`Synthetic` in numpy, whose numbers are not those of torch."""

    def _draw(self, seed: int, batches: int) -> Pool:
        """Return batches drawn from a seed."""
        rng, pool = np.random.default_rng(seed), []
        for _ in range(batches):
            labels = rng.integers(self._spec.classes, size=self.batch_size, dtype=np.int32)
            pool.append((rng.standard_normal((self.batch_size, *self._shape), np.float32), labels))
        return pool
