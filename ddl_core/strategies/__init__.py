"""How ranks work together: everything a framework may contribute, and nothing more.

The loop, the learning rate, the batch statistics and the clock belong to `train.py` and
`timing.py`. A new framework is one file here and one line in `registry.py`.
"""

from contextlib import AbstractContextManager
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Reduction = Literal["sum", "min", "max"]


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

    def teardown(self) -> None:
        """Leave the group."""
        ...
