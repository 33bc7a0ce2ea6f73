"""`Loader`: a source of batches. A new one is one file here and one entry in `spec/registry.py`."""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from ddl_core.rank.fairness import Source


class Loader(Source, Protocol):
    """A source of tensors: one rank's share of one split.

    The constructor takes ``(spec, data_dir, split, rank, world_size, device)``.
    """

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (n, 3, size, size) and labels (n,), already on the device.

        A batch is valid until the next one is asked for.
        """
        ...
