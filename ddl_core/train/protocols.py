"""What a framework, a data path and a format of data may contribute, and nothing more.

The loop, the learning rate, the batch statistics and the clock belong to `loop.py`, `optim.py` and
`clock.py`. A new framework is one file in `strategies/`, a new data path one file in `loaders/`,
each with one entry in `spec/registry.py`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Reduction = Literal["sum", "min", "max"]
Split = Literal["train", "eval"]


class Strategy(Protocol):
    """One rank's view of its group. The constructor joins the group."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Give all ranks rank 0's weights; return what to call and what to step."""
        ...

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which backward keeps gradients local (accumulation)."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`; outside `no_sync`, end with their mean over ranks."""
        ...

    def optimizer_step(self, scaler: torch.amp.GradScaler) -> None:
        """Apply one update, through `scaler` (which does nothing unless fp16)."""
        ...

    def all_reduce(self, tensor: Tensor, op: Reduction = "sum") -> Tensor:
        """Reduce `tensor` over ranks in place, and return it."""
        ...

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what communicates and how, as it is in effect after `setup`; for the record.

        Runs that differ in it are never pooled, so it tells nothing of ranks and places.
        """
        ...

    def teardown(self) -> None:
        """Leave the group."""
        ...


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
    rescued_images: int | None
    """Images that Pillow decoded since `set_epoch` because DALI failed; None without DALI."""
    seen: list[npt.NDArray[np.int64]] | None
    """Numbers of the images yielded since `set_epoch`, 0 to ``images - 1``; None if made up."""
    own_order: bool
    """Whether training takes other images than `loaders/order.py` says: as many, each at most once.

    Its views are then its own too. Evaluation is the same for all.
    """

    def __len__(self) -> int:
        """Return the micro-batches per epoch; equal on all ranks when training."""
        ...

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (n, 3, size, size) and labels (n,), already on the device.

        A batch is valid until the next one is asked for.
        """
        ...

    def set_epoch(self, epoch: int) -> None:
        """Choose order and augmentation."""
        ...


class EncodedImages(Protocol):
    """The images of one split, by number: files in folders or records in shards.

    Attributes
    ----------
    classes : tuple of str
        A label is an index into them. Empty where the set does not name its classes.
    """

    classes: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def read(self, index: int) -> tuple[bytes, int]:
        """Return the encoded image and its label, ``0 <= index < len``.

        Raises
        ------
        DataError
            If its file was there when the set was listed and is gone now, or has changed.
        """
        ...

    def name(self, index: int) -> str:
        """Return what identifies an image within its split, for messages and records."""
        ...

    def fingerprint(self) -> str:
        """Return a SHA-256 that tells sets apart without reading the images."""
        ...
