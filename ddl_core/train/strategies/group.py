"""Which rank this process is, and the torch.distributed group that DDP and DeepSpeed share.

NCCL on GPUs, Gloo on the CPU.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddl_core.errors import LaunchError
from ddl_core.records import gpus
from ddl_core.spec.run import RunSpec
from ddl_core.train.protocols import Reduction

OPERATIONS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}

# A collective that waits longer than this ends the run. Generous, because the first one waits for
# the slowest rank to list its images, which takes minutes on a busy parallel file system.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Rank:
    """Place of this process: `rank` of `world_size`, `local_rank` on its machine."""

    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def from_environment(cls, spec: RunSpec) -> "Rank":
        """Read the variables that torchrun sets, as all do who start ranks here.

        Raises
        ------
        LaunchError
            If the number of processes is not the one that `spec` asks for.
        """
        place = cls(
            rank=int(os.environ.get("RANK", 0)),
            local_rank=int(os.environ.get("LOCAL_RANK", 0)),
            world_size=int(os.environ.get("WORLD_SIZE", 1)),
        )
        if place.world_size != spec.world_size:
            raise LaunchError(
                f"{place.world_size} ranks were started, but the run asks for {spec.world_size} "
                f"(nodes {spec.nodes} x gpus_per_node {spec.gpus_per_node})"
            )
        return place

    def device(self, wanted: str) -> torch.device:
        """Return the device for ``"auto"``, ``"cpu"`` or ``"cuda"``.

        Raises
        ------
        LaunchError
            If CUDA is asked for and not there; or if torch sees no GPU where the driver lists one.
        """
        if wanted == "cpu":
            return torch.device("cpu")
        if not torch.cuda.is_available():
            _refuse_unseen()
            if wanted == "auto":
                return torch.device("cpu")
            raise LaunchError(
                "device 'cuda' was asked for, but torch sees no CUDA device; "
                "use device 'cpu' or 'auto', or a CUDA build of torch on a machine with a GPU"
            )
        # Some sites show every rank all GPUs of the node, some only its own.
        device = torch.device("cuda", self.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device


def _refuse_unseen() -> None:
    """Do not train on the CPU, unsaid, what a newer driver or another torch would on a GPU."""
    cuda = torch.version.cuda
    if why := gpus.unseen(cuda):
        raise LaunchError(f"{why}; {gpus.remedy(cuda)}; or choose device 'cpu'")


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
        if dist.is_initialized():
            dist.destroy_process_group()
