"""Where batches come from. A new data path is one file here and one line in `registry.py`."""

from collections.abc import Iterator
from typing import Literal, Protocol

from torch import Tensor

Split = Literal["train", "eval"]


class Loader(Protocol):
    """One rank's share of one split.

    The constructor takes ``(spec, data_dir, split, rank, world_size, device)``.
    """

    images: int
    """Images in the split, all ranks, before a last batch is dropped."""
    classes: int
    fingerprint: str | None
    """SHA-256 that identifies the data; None if it is made up."""
    corrupt_images: int
    """Unreadable images replaced on this rank since `set_epoch`."""

    def __len__(self) -> int:
        """Return the micro-batches per epoch; equal on all ranks when training."""
        ...

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (n, 3, size, size) and labels (n,), already on the device."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Choose order and augmentation."""
        ...
