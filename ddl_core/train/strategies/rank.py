"""Which rank this process is and where it computes, from its launcher's environment."""

import os
from dataclasses import dataclass

import torch

from ddl_core.errors import LaunchError
from ddl_core.spec.run import RunSpec


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
            If CUDA is asked for and not there.
        """
        if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
            return torch.device("cpu")
        if not torch.cuda.is_available():
            raise LaunchError(
                "device 'cuda' was asked for, but torch sees no CUDA device; "
                "use device 'cpu' or 'auto', or a CUDA build of torch on a machine with a GPU"
            )
        # Some sites show every rank all GPUs of the node, some only its own.
        device = torch.device("cuda", self.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
