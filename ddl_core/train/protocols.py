"""What a framework and a data path may contribute, and nothing more.

The loop, the learning rate, the batch statistics and the clock belong to `loop.py`, `optim.py` and
`clock.py`. A new framework is one file in `strategies/`, a new data path one file in `loaders/`,
each with one entry in `spec/registry.py`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddl_core.rank.group import Reduction
from ddl_core.rank.rules import Source


class Strategy(Protocol):
    """One rank's view of its group. The constructor joins the group."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    shares_weights: bool
    """Whether a rank keeps a part of the weights only. Then forward, and `state_dict` of network
    and optimiser, are collectives, and rank 0 alone gets the whole state."""

    @property
    def waits_in_backward(self) -> bool:
        """Whether `backward` waits for communication before the last gradient is there.

        The clock then gives no breakdown of a step.
        """
        ...

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


class Loader(Source, Protocol):
    """A source of tensors: one rank's share of one split.

    The constructor takes ``(spec, data_dir, split, rank, world_size, device)``.
    """

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (n, 3, size, size) and labels (n,), already on the device.

        A batch is valid until the next one is asked for.
        """
        ...
