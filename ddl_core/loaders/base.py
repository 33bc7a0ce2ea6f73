"""`Loader`: a source of batches. A new one is one file here and one entry in `registry.py`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ddl_core.config import RunSpec
from ddl_core.data.contents import Contents, look_into
from ddl_core.data.dataset import Dataset
from ddl_core.data.sampling import BatchSampler, Indices, Split
from ddl_core.errors import SpecError
from ddl_core.files import drop_cached
from ddl_core.registry import resolve

Batch = tuple[Any, Any, Indices, int]
"""Images and labels, the images' numbers, and how many of them were unreadable."""


class Loader:
    """One rank's share of one split, for all frameworks.

    A subclass yields batches in `_batches`; base class and subclass share the attributes with a
    leading underscore. What counts images, counts since `set_epoch`.
    """

    images: int  # in the split, of all ranks, before a last batch is dropped
    classes: int
    fingerprint: str | None = None  # SHA-256 that identifies the data; None for synthetic data
    corrupt_images: int = 0  # unreadable, and replaced on this rank
    seen: list[Indices] | None = None  # numbers of the images yielded; None if synthetic
    own_order: bool = False  # whether training takes as many images, in an order of its own

    def __init__(
        self,
        spec: RunSpec,
        data_dir: Path | None,
        split: Split,
        rank: int,
        world_size: int,
        device: Any = None,
    ) -> None:
        self.batch_size = spec.local_batch_size
        self._spec, self._split, self._device = spec, split, device
        self._rank, self._world_size = rank, world_size
        self._open(data_dir)
        self._plan = BatchSampler(spec, split, self.images, rank, world_size)
        self._prepare()

    def _open(self, data_dir: Path | None) -> None:
        """Find the images of the split."""
        self._files = Dataset(self._spec, data_dir, self._split)
        self.images, self.classes = len(self._files), self._files.classes
        self.fingerprint = self._files.listing.fingerprint()
        self.seen = []

    def contents(self) -> Contents | None:
        """Look into the files of the split; None of one that `_open` does not find."""
        files: Dataset | None = getattr(self, "_files", None)
        return look_into(files.listing) if files else None

    def _prepare(self) -> None:
        """Make what `_batches` needs; the end of the constructor."""

    def set_epoch(self, epoch: int) -> None:
        """Choose order and augmentation."""
        self._plan.epoch = epoch
        self.corrupt_images = 0
        self.seen = []
        if self._spec.uncached:
            own = np.arange(self.images) if self.own_order else self._plan.numbers()
            drop_cached(self._files.paths(own))

    def __len__(self) -> int:
        """Return the micro-batches per epoch; equal on all ranks when training."""
        return len(self._plan)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield images (n, 3, size, size) and labels (n,) on the device, valid until the next."""
        seen = self.seen = []
        for images, labels, numbers, corrupt in self._batches():
            self.corrupt_images += corrupt
            seen.append(numbers)
            yield images, labels

    def _batches(self) -> Iterator[Batch]:
        raise NotImplementedError


def open_loader(
    spec: RunSpec, data_dir: Path | None, split: Split, rank: int, world_size: int, device: Any
) -> Loader:
    """Return the loader that a run asks for; `SpecError` if it does not derive from `Loader`."""
    make = resolve("loader", spec.loader)
    if not (isinstance(make, type) and issubclass(make, Loader)):
        raise SpecError(
            f"loader {spec.loader!r} does not derive from `Loader` of ddl_core/loaders/base.py; "
            "change its class (docs/how-to/add-a-loader.md)"
        )
    return make(spec, data_dir, split, rank, world_size, device)


def __getattr__(name: str) -> Any:
    if name == "FileLoader":  # of a package written for version 0.1
        raise SpecError(
            f"{__name__}.{name} is now `Loader`; derive your loader from that one "
            "(docs/how-to/add-a-loader.md)"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
