"""Which rank this process is, and the torch.distributed group that DDP and DeepSpeed share.

NCCL on GPUs, Gloo on the CPU.
"""

import os
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from ddl_core.errors import LaunchError
from ddl_core.rank.group import Place, Reduction
from ddl_core.records import gpus
from ddl_core.spec.run import RunSpec
from ddl_core.train.protocols import Strategy

OPERATIONS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}

# A collective that waits longer than this ends the run. Generous, because the first one waits for
# the slowest rank to list its images, which takes minutes on a busy parallel file system.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)


class Rank(Place):
    """Place of this process, and the device that torch computes on there."""

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
    """One rank of the group: who it is, collectives, and a plain step. The constructor joins."""

    shares_weights = False
    _optimizer: Any  # of `setup`

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

    @property
    def waits_in_backward(self) -> bool:
        """Whether the run's settings make it wait there."""
        return self._spec.waits_in_backward

    def all_reduce(self, tensor: Tensor, op: Reduction = "sum") -> Tensor:
        """Reduce `tensor` over ranks in place."""
        dist.all_reduce(tensor, OPERATIONS[op])
        return tensor

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        dist.barrier()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`; hooks of the network average them while backward goes on."""
        loss.backward()

    def optimizer_step(self, scaler: torch.amp.GradScaler) -> None:
        """Apply one update, of what this rank has."""
        scaler.step(self._optimizer)
        scaler.update()

    def describe(self) -> dict[str, Any]:
        """Return ``library``, and NCCL's version where it is that; Gloo comes with torch."""
        if self.device.type != "cuda":
            return {"library": "gloo"}
        return {"library": "nccl", "nccl": ".".join(map(str, torch.cuda.nccl.version()))}

    def teardown(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()


class Reducing:
    """A strategy's ranks as a `Group`: its collectives for numbers that are no tensors."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self.rank, self.local_rank = strategy.rank, strategy.local_rank
        self.world_size = strategy.world_size

    def reduce(self, values: npt.ArrayLike, op: Reduction = "sum") -> npt.NDArray[Any]:
        """Return `values` reduced over ranks, in their own type. A collective."""
        tensor = torch.tensor(np.asarray(values), device=self._strategy.device)
        return self._strategy.all_reduce(tensor, op).cpu().numpy()

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._strategy.barrier()
