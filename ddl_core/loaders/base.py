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

Batch = tuple[Tensor, Tensor, Indices, int]
"""Images and labels on the device, the images' numbers, and how many of them were unreadable."""


class Loader(Source, Protocol):
    """One rank's share of a split; made from (spec, data_dir, split, rank, world_size, device)."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (n, 3, size, size) and labels (n,) on the device, valid until the next."""


class FileLoader(ImageSource):
    """A loader of image files; subclasses say how batches are made."""

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
        """Make what `_batches` needs; the end of the constructor."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        seen = self.seen = []
        for images, labels, numbers, corrupt in self._batches():
            self.corrupt_images += corrupt
            seen.append(numbers)
            yield images, labels

    def _batches(self) -> Iterator[Batch]:
        raise NotImplementedError
