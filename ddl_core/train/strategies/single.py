"""One process, no communication: the reference that every other strategy must equal."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddl_core.rank.group import Reduction
from ddl_core.spec.run import RunSpec
from ddl_core.train.strategies.group import Rank


class Single:
    """The trivial group of one rank."""

    shares_weights = False
    waits_in_backward = False

    def __init__(self, spec: RunSpec) -> None:
        place = Rank.from_environment(spec)
        self.rank, self.local_rank, self.world_size = place.rank, place.local_rank, place.world_size
        self.device = place.device(spec.device)

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Return both unchanged."""
        self._optimizer = optimizer
        return model, optimizer

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`."""
        loss.backward()

    def optimizer_step(self, scaler: torch.amp.GradScaler) -> None:
        """Apply one update."""
        scaler.step(self._optimizer)
        scaler.update()

    def all_reduce(self, tensor: Tensor, op: Reduction = "sum") -> Tensor:
        """Return `tensor`."""
        return tensor

    def barrier(self) -> None:
        """Return at once."""

    def describe(self) -> dict[str, Any]:
        """Return nothing: nobody communicates."""
        return {}

    def teardown(self) -> None:
        """Do nothing."""
