"""The torch.distributed group that DDP and DeepSpeed share: NCCL on GPUs, Gloo on the CPU."""

import os
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from ddl_core.spec.run import RunSpec
from ddl_core.train.protocols import Reduction
from ddl_core.train.strategies.rank import Rank

OPERATIONS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}

# A collective that waits longer than this ends the run. Generous, because the first one waits for
# the slowest rank to list its images, which takes minutes on a busy parallel file system.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)


class ProcessGroup:
    """One rank of the group: who it is, and collectives. The constructor joins."""

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

    def all_reduce(self, tensor: Tensor, op: Reduction = "sum") -> Tensor:
        """Reduce `tensor` over ranks in place."""
        dist.all_reduce(tensor, OPERATIONS[op])
        return tensor

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        dist.barrier()

    def teardown(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()
