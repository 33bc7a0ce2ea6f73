"""`Strategy`: how ranks work together. One process alone, and a torch.distributed group.

A new strategy is one file in this folder and one entry in `registry.py`. It overrides only what it
does differently from `Strategy` or `ProcessGroup`.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ddl_core.config import RunSpec
from ddl_core.device import choose_device
from ddl_core.optim import own_gradients
from ddl_core.strategies import RankInfo, Reduction

OPERATIONS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}

# The first collective waits for the slowest rank to list its images, which may take minutes.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)


class Strategy:
    """One rank of a run, and what it does together with the others; here, nothing.

    The constructor joins the group.
    """

    is_sharded = False  # whether a rank keeps a part of the weights; then forward is a collective
    copies = 1  # of sharded weights, each on ranks that follow one another
    model: Any = None
    optimizer: Any = None

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        info = RankInfo.from_environment(spec)
        self.rank, self.local_rank, self.world_size = info.rank, info.local_rank, info.world_size
        self.device = choose_device(spec.device, info.local_rank)

    @property
    def waits_in_backward(self) -> bool:
        """Whether `backward` waits for other ranks; the clock then gives no breakdown of a step."""
        return self.spec.waits_in_backward

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Give all ranks rank 0's weights; return what to call and what to step."""
        self.model, self.optimizer = model, optimizer
        return model, optimizer

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which backward keeps gradients local (accumulation)."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`; outside `no_sync`, it may average them over ranks."""
        loss.backward()

    def average_gradients(self) -> None:
        """Average the gradients over ranks, once a step, unless `backward` does it.

        The clock counts this as communication.
        """

    def clip_gradients(self, scaler: torch.amp.GradScaler) -> None:
        """Scale the averaged gradients to a norm of at most `clip_grad_norm`, if there is one.

        The norm is that of all gradients together, also where each rank keeps a part of them.
        """
        limit = self.spec.clip_grad_norm
        if limit is None:
            return
        scaler.unscale_(self.optimizer)
        parameters = list(self.model.parameters())
        norm = nn.utils.get_total_norm(own_gradients(parameters))
        if self.is_sharded:
            norm = (self.all_reduce(norm.square()) / self.copies).sqrt()
        nn.utils.clip_grads_with_norm_(parameters, limit, norm)

    def optimizer_step(self, scaler: torch.amp.GradScaler) -> None:
        """Apply one update, through `scaler` (which does nothing unless fp16)."""
        scaler.step(self.optimizer)
        scaler.update()

    def all_reduce(self, tensor: Tensor, op: Reduction = "sum") -> Tensor:
        """Reduce `tensor` over ranks in place, and return it."""
        return tensor

    def full_weights(self, network: nn.Module) -> dict[str, Tensor]:
        """Return what `network.state_dict()` is on one process. A collective.

        Of sharded weights, the first rank of each copy gets the whole and the others empty tensors.
        """
        return network.state_dict()

    def full_state(self, network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the weights and the optimiser's state, for a checkpoint. A collective."""
        return {"model": self.full_weights(network), "optimizer": optimizer.state_dict()}

    def load_full_state(
        self, network: nn.Module, optimizer: Optimizer, saved: dict[str, Any]
    ) -> None:
        """Continue from rank 0's `full_state`, which all ranks have read. A collective."""
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    def reduce(self, values: npt.ArrayLike, op: Reduction = "sum") -> npt.NDArray[Any]:
        """Return numbers reduced over ranks, in their own type. A collective."""
        return (
            self.all_reduce(torch.tensor(np.asarray(values), device=self.device), op).cpu().numpy()
        )

    def barrier(self) -> None:
        """Wait until all ranks are here."""

    def describe(self) -> dict[str, Any]:
        """Return what communicates and how, after `setup`, for the record.

        Runs that differ in it are not pooled, so it does not depend on the rank.
        """
        return {}

    def teardown(self) -> None:
        """Leave the group."""
        self.model = self.optimizer = None


class Single(Strategy):
    """One process without communication, which every other strategy must equal."""


class ProcessGroup(Strategy):
    """A torch.distributed group: NCCL on GPUs, Gloo on the CPU."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        if spec.nodes == 1:
            # A laptop's host name may resolve to an address that is not there.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        on_gpu = self.device.type == "cuda"
        # DeepSpeed clones the group, and of one rank alone NCCL fails to split a bound one.
        bound = on_gpu and self.world_size > 1
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            timeout=COLLECTIVE_TIMEOUT,
            device_id=self.device if bound else None,
        )

    def all_reduce(self, tensor: Tensor, op: Reduction = "sum") -> Tensor:
        """Reduce `tensor` over ranks in place."""
        dist.all_reduce(tensor, OPERATIONS[op])
        return tensor

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        dist.barrier()

    def describe(self) -> dict[str, Any]:
        """Return ``library``, and NCCL's version where it is that; Gloo comes with torch."""
        if self.device.type != "cuda":
            return {"library": "gloo"}
        return {"library": "nccl", "nccl": ".".join(map(str, torch.cuda.nccl.version()))}

    def teardown(self) -> None:
        """Leave the group."""
        super().teardown()
        if dist.is_initialized():
            dist.destroy_process_group()
