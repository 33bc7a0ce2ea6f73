"""PyTorch DistributedDataParallel over NCCL (GPU) or Gloo (CPU)."""

import os
from contextlib import AbstractContextManager
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddl_core.errors import SpecError
from ddl_core.protocols import Reduction
from ddl_core.spec import RunSpec
from ddl_core.strategies.rank import Rank

OPERATIONS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}

COMPRESSION = {
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}

# Renamed in torch 2.13.
BUFFER_SYNC = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)

# A collective that waits longer than this ends the run. Generous, because the first one waits for
# the slowest rank to list its images, which takes minutes on a busy parallel file system.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)


class DDP:
    """A torch.distributed process group and a model wrapped in DistributedDataParallel."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        place = Rank.from_environment(spec)
        self.rank, self.local_rank, self.world_size = place.rank, place.local_rank, place.world_size
        self.device = place.device(spec.device)
        if spec.nodes == 1:
            # A laptop's host name often resolves to an address that is not there at the moment.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        on_gpu = self.device.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            timeout=COLLECTIVE_TIMEOUT,
            device_id=self.device if on_gpu else None,
        )

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Wrap `model`; the constructor sends rank 0's weights to all.

        Buffers are not broadcast at every forward (DDP's default): the batch statistics follow one
        policy for all strategies, which `train.py` owns.
        """
        spec = self._spec
        self._optimizer = optimizer
        devices = [self.device] if self.device.type == "cuda" else None
        options: dict[str, Any] = {BUFFER_SYNC: False}
        self._model = DistributedDataParallel(
            model,
            device_ids=devices,
            bucket_cap_mb=spec.ddp_bucket_mb,
            gradient_as_bucket_view=spec.ddp_bucket_view,
            static_graph=spec.ddp_static_graph,
            **options,
        )
        if spec.ddp_compression == "bf16" and self.device.type == "cpu":
            raise SpecError(
                "ddp_compression = 'bf16' needs NCCL on GPUs; on the CPU use 'fp16' or 'none'"
            )
        if spec.ddp_compression != "none":
            self._model.register_comm_hook(None, COMPRESSION[spec.ddp_compression])
        return self._model, optimizer

    def no_sync(self) -> AbstractContextManager[None]:
        """Return DDP's own context."""
        return self._model.no_sync()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`; DDP's hooks average them while backward goes on."""
        loss.backward()

    def optimizer_step(self, scaler: torch.amp.GradScaler) -> None:
        """Apply one update."""
        scaler.step(self._optimizer)
        scaler.update()

    def all_reduce(self, tensor: Tensor, op: Reduction = "sum") -> Tensor:
        """Reduce `tensor` over ranks in place."""
        dist.all_reduce(tensor, OPERATIONS[op])
        return tensor

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        dist.barrier()

    def teardown(self) -> None:
        """Leave the group.

        The wrapper goes first: its reducer's threads, alive at interpreter exit, sometimes abort
        the process after a correct training.
        """
        self._model = self._optimizer = None  # type: ignore[assignment]
        if dist.is_initialized():
            dist.destroy_process_group()
