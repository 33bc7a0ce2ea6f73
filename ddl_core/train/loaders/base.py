"""`Loader`: a source of batches. A new one is one file here and one entry in `spec/registry.py`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ddl_core.rank.fairness import Source
from ddl_core.rank.images import Batches, Images
from ddl_core.rank.order import Indices, Split
from ddl_core.spec.run import RunSpec


class Loader(Source, Protocol):
    """A source of tensors: one rank's share of one split.

    The constructor takes ``(spec, data_dir, split, rank, world_size, device)``.
    """

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (n, 3, size, size) and labels (n,), already on the device.

        A batch is valid until the next one is asked for.
        """
        ...


class FileLoader:
    """A loader of image files: all of the protocol but how batches are made.

    Subclasses add `_batches`, which yields images (n, 3, size, size) and labels (n,) on the device,
    the images' numbers, and how many of them were unreadable.
    """

    rescued_images: int | None = None
    own_order = False

    def __init__(
        self,
        spec: RunSpec,
        data_dir: Path | None,
        split: Split,
        rank: int,
        world_size: int,
        device: torch.device,
    ) -> None:
        self._files = Images(spec, data_dir, split)
        self.images = len(self._files)
        self.classes = self._files.classes
        self.fingerprint = self._files.fingerprint()
        self.batch_size = spec.local_batch_size
        self.corrupt_images = 0
        self.seen: list[Indices] | None = []
        self._spec, self._split, self._device = spec, split, device
        self._plan = Batches(spec, split, self.images, rank, world_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose order and augmentation."""
        self._plan.epoch = epoch
        self.corrupt_images = 0
        self.seen = []

    def __len__(self) -> int:
        """Return the micro-batches per epoch."""
        return len(self._plan)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches on the device."""
        seen = self.seen = []
        for images, labels, numbers, corrupt in self._batches():
            self.corrupt_images += corrupt
            seen.append(numbers)
            yield images, labels

    def _batches(self) -> Iterator[tuple[Tensor, Tensor, Indices, int]]:
        raise NotImplementedError
