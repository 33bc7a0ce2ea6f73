"""`Loader`: a source of batches. A new one is one file here and one entry in `registry.py`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ddl_core.config import RunSpec
from ddl_core.data.dataset import ImageSource
from ddl_core.data.sampling import Indices, Split
from ddl_core.fairness import Source


class Loader(Source, Protocol):
    """A source of tensors: one rank's share of one split.

    The constructor takes ``(spec, data_dir, split, rank, world_size, device)``.
    """

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (n, 3, size, size) and labels (n,), already on the device.

        A batch is valid until the next one is asked for.
        """


class FileLoader(ImageSource):
    """A loader of image files: all of the protocol but how batches are made.

    Subclasses add `_batches`, which yields images (n, 3, size, size) and labels (n,) on the device,
    the images' numbers, and how many of them were unreadable; and `_prepare`, what they need.
    """

    def __init__(
        self,
        spec: RunSpec,
        data_dir: Path | None,
        split: Split,
        rank: int,
        world_size: int,
        device: torch.device,
    ) -> None:
        super().__init__(spec, data_dir, split, rank, world_size)
        self.batch_size = spec.local_batch_size
        self._device = device
        self._prepare()

    def _prepare(self) -> None:
        """Make what batches are made with; the end of the constructor."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches on the device."""
        seen = self.seen = []
        for images, labels, numbers, corrupt in self._batches():
            self.corrupt_images += corrupt
            seen.append(numbers)
            yield images, labels

    def _batches(self) -> Iterator[tuple[Tensor, Tensor, Indices, int]]:
        raise NotImplementedError
