"""PyTorch DistributedDataParallel over NCCL (GPU) or Gloo (CPU)."""

import os
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_core.strategies.base import ProcessGroup

DEBUG = "TORCH_DISTRIBUTED_DEBUG"
COMPRESSION = {
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}


def _no_buffers() -> dict[str, Any]:
    """Return the option by which a forward pass sends no buffers."""
    known = signature(DistributedDataParallel).parameters
    # Older versions of torch know only the second name; newer ones warn of it.
    names = ("forward_sync_buffers", "broadcast_buffers")
    return {next(name for name in names if name in known): False}


def _one_bucket_at_a_time(
    state: powerSGD_hook.PowerSGDState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # missing in torch's own type hints
) -> torch.futures.Future[Tensor]:
    """Compress a bucket and wait: Gloo would mix up the messages of two buckets."""
    sent = powerSGD_hook.powerSGD_hook(state, bucket)
    sent.wait()
    return sent


def _check_debug_level() -> None:
    """Raise `LaunchError` at a debug level at which torch's own DDP crashes over Gloo."""
    if dist.get_backend() == "gloo" and os.environ.get(DEBUG, "").upper() == "DETAIL":
        raise LaunchError(
            f"{DEBUG}=DETAIL: torch's DistributedDataParallel crashes over Gloo",
            remedy=f"unset {DEBUG}, or use INFO",
            category="environment",
        )


class DDP(ProcessGroup):
    """A torch.distributed process group and a model wrapped in DistributedDataParallel."""

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Wrap `model`; the constructor sends rank 0's weights to all.

        Buffers are not broadcast at every forward pass: the loop averages batch statistics.
        """
        _check_debug_level()
        spec = self.spec
        self.optimizer = optimizer
        devices = [self.device] if self.device.type == "cuda" else None
        self.model = DistributedDataParallel(
            model,
            device_ids=devices,
            **self._buckets(),
            gradient_as_bucket_view=spec.ddp_bucket_view,
            **_no_buffers(),
        )
        if spec.ddp_compression == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None, spec.ddp_powersgd_rank, start_powerSGD_iter=spec.ddp_powersgd_start
            )
            on_gpu = self.device.type == "cuda"
            hook = powerSGD_hook.powerSGD_hook if on_gpu else _one_bucket_at_a_time
            self.model.register_comm_hook(state, hook)
        elif spec.ddp_compression != "none":
            self.model.register_comm_hook(None, COMPRESSION[spec.ddp_compression])
        return self.model, optimizer

    def _buckets(self) -> dict[str, Any]:
        spec = self.spec
        if spec.ddp_first_bucket_mb:
            return {"bucket_cap_mb_list": [spec.ddp_first_bucket_mb, spec.ddp_bucket_mb]}
        # With its own default given, DDP would leave out its small first bucket.
        own = spec.ddp_bucket_mb == RunSpec.model_fields["ddp_bucket_mb"].default
        return {"bucket_cap_mb": None if own else spec.ddp_bucket_mb}

    def no_sync(self) -> AbstractContextManager[None]:
        """Return DDP's own context."""
        return self.model.no_sync()

    def describe(self) -> dict[str, Any]:
        """Add the buckets of gradients, and whether their reduction overlaps with backward."""
        size = self.model.bucket_bytes_cap
        first = 2**20 if self.model.bucket_bytes_cap_default else size  # torch's own, by default
        if given := self.spec.ddp_first_bucket_mb:
            size, first = int(self.spec.ddp_bucket_mb * 2**20), int(given * 2**20)
        overlap = not self.waits_in_backward
        buckets = {"bucket_bytes": size, "first_bucket_bytes": first, "overlap": overlap}
        return {**super().describe(), **buckets}
