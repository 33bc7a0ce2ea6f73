"""Horovod's DistributedOptimizer over Gloo or MPI (CPU) or NCCL (GPU)."""

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import horovod.torch as hvd
import torch
from horovod.runner.http.http_server import RendezvousHTTPServer
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.optim import Optimizer

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_core.origin import made
from ddl_core.strategies import Reduction
from ddl_core.strategies import horovod_setup as horovod
from ddl_core.strategies.base import Strategy

OPERATIONS = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max}


class Horovod(Strategy):
    """A Horovod group; its optimiser averages gradients while backward goes on."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self._last_pass = True
        if self.device.type == "cuda":
            _check_gpu_build()
        _check_controller(spec.nodes)
        horovod.configure(spec)
        server, _store = _meet(spec, self)  # both are needed until all ranks are connected
        hvd.init()
        hvd.barrier()
        horovod.close(server)
        if (hvd.rank(), hvd.size()) != (self.rank, self.world_size):
            raise LaunchError(
                f"Horovod made this process rank {hvd.rank()} of {hvd.size()}, its launcher rank "
                f"{self.rank} of {self.world_size}; start all ranks by one launcher"
            )

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Send rank 0's weights and buffers to all; wrap `optimizer`.

        Horovod sums the gradients of all backward passes of a step, then averages them over ranks.
        The loop has divided each loss by their number, so the result is the mean over both.
        """
        spec = self.spec
        _broadcast(model.state_dict())
        self.model = model
        self.optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=InMemoryOrder if spec.channels_last else hvd.Compression.none,
            backward_passes_per_step=spec.backward_passes,
            op=hvd.Average,
        )
        # Horovod's own takes no arguments, and torch's default is the only value used.
        plain_zero_grad = self.optimizer.zero_grad
        self.optimizer.zero_grad = lambda set_to_none=True: plain_zero_grad()
        return model, self.optimizer

    def load_full_state(
        self, network: nn.Module, optimizer: Optimizer, saved: dict[str, Any]
    ) -> None:
        """Let all ranks continue from what rank 0 has read.

        On an empty state, Horovod's broadcast would take a step to fill it.
        """
        super().load_full_state(network, optimizer, saved)
        if optimizer.state:
            _broadcast(network.state_dict())
            _broadcast_state(optimizer)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Tell `backward` that more passes follow; the optimiser counts them by itself."""
        self._last_pass = False
        try:
            yield
        finally:
            self._last_pass = True

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`; in the last pass of a step, hooks send them off."""
        loss.backward()
        if self._last_pass:
            self.optimizer.synchronize()

    def optimizer_step(self, scaler: torch.amp.GradScaler) -> None:
        """Apply one update."""
        with self.optimizer.skip_synchronize():
            super().optimizer_step(scaler)

    def all_reduce(self, tensor: Tensor, op: Reduction = "sum") -> Tensor:
        """Reduce `tensor` over ranks in place."""
        # Horovod matches tensors by name; one that returns is found in its cache.
        name = f"ddl.{op}.{tensor.dtype}.{tuple(tensor.shape)}"
        return hvd.allreduce_(tensor, op=OPERATIONS[op], name=name)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        hvd.barrier()

    def describe(self) -> dict[str, Any]:
        """Return ``library``, with the version of Horovod's own NCCL, and how it is used."""
        controller = "mpi" if hvd.mpi_enabled() else "gloo"
        library = os.environ.get("HOROVOD_CPU_OPERATIONS", controller).lower()
        known = {"library": library}
        if self.device.type == "cuda":
            known = {"library": "nccl", "nccl": _version(hvd.nccl_built())}
        return {**known, "controller": controller, **horovod.settings()}

    def teardown(self) -> None:
        """Leave the group, unless an error is on its way.

        Leaving makes the other ranks raise; a failing rank first has to leave its reason.
        """
        super().teardown()
        if sys.exc_info()[0] is None:
            hvd.shutdown()


class InMemoryOrder:
    """What Horovod calls a compression: it sends gradients of any layout, as contiguous views.

    Horovod sends contiguous tensors only, and gradients are laid out like their weights.
    """

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, list[int]]:
        """Return what to send, and what `decompress` needs to know."""
        order = _memory_order(tensor)
        return tensor.permute(order), order

    @staticmethod
    def decompress(tensor: Tensor, context: list[int]) -> Tensor:
        """Return what has arrived, laid out as the gradient was."""
        return tensor.permute([context.index(dimension) for dimension in range(len(context))])


def _memory_order(tensor: Tensor) -> list[int]:
    """Return the dimensions from that of the largest stride to that of the smallest."""
    if tensor.is_contiguous():
        return list(range(tensor.dim()))  # whatever the strides of dimensions of size 1
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda one: -strides[one])


def _in_memory_order(tensor: Tensor) -> Tensor:
    """Return a contiguous view of the memory of a tensor without gaps."""
    return tensor.permute(_memory_order(tensor))


def _broadcast(tensors: Mapping[str, Tensor]) -> None:
    """Overwrite tensors with rank 0's."""
    views = {name: _in_memory_order(tensor) for name, tensor in tensors.items()}
    hvd.broadcast_parameters(views, root_rank=0)


def _broadcast_state(optimizer: Optimizer) -> None:
    """Overwrite an optimiser's state with rank 0's, which Horovod sees as contiguous views."""
    own = [
        (values, name, value)
        for values in optimizer.state.values()
        for name, value in values.items()
        if isinstance(value, Tensor)
    ]
    for values, name, value in own:
        values[name] = _in_memory_order(value)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for values, name, value in own:
        values[name] = value


def _check_gpu_build() -> None:
    """Refuse a build or driver that would end this process silently in Horovod's own thread."""
    if not hvd.nccl_built():
        raise LaunchError(
            "this Horovod was built without NCCL, which GPUs need",
            remedy=f"run `{made('horovod HOROVOD_GPU_OPERATIONS=NCCL')}`, or use device 'cpu'",
        )
    if torch.version.cuda is None:  # ROCm
        return
    try:
        ctypes.CDLL("libcuda.so")
    except OSError as error:
        raise LaunchError(
            f"Horovod cannot load the driver as libcuda.so ({error})",
            remedy="make a link of that name to libcuda.so.1 in a folder of LD_LIBRARY_PATH",
        ) from None


def _check_controller(nodes: int) -> None:
    """Refuse MPI where Horovod has none, and Gloo on too many nodes."""
    remedy = f"`{made('horovod HOROVOD_WITH_MPI=1')}` builds it with MPI"
    if os.environ.get("HOROVOD_CONTROLLER") != "mpi":
        use = 'use HOROVOD_CONTROLLER=mpi (horovod_controller = "mpi" of a site)'
        horovod.check_nodes(nodes, f"{use}; {remedy}")
    elif not hvd.mpi_built():
        raise LaunchError(
            "HOROVOD_CONTROLLER=mpi, but this Horovod was built without MPI", remedy=remedy
        )


def _version(code: int) -> str:
    """Return e.g. ``"2.21.5"`` for NCCL's 22105; before 2.9, 2.8.4 was 2804 (nccl.h)."""
    thousand = 10_000 if code >= 10_000 else 1000
    return f"{code // thousand}.{code % thousand // 100}.{code % 100}"


def _meet(spec: RunSpec, info: Strategy) -> tuple[RendezvousHTTPServer | None, Any]:
    """Tell Horovod where its ranks meet, unless horovodrun or MPI have done so.

    Rank 0 opens Horovod's rendezvous, and tells its port to the others through torch's store at
    ``MASTER_ADDR:MASTER_PORT``. Under srun, rank 0 holds that store as long as what is returned.
    """
    if "HOROVOD_RANK" in os.environ or os.environ.get("HOROVOD_CONTROLLER") == "mpi":
        return None, None
    address = "127.0.0.1" if spec.nodes == 1 else os.environ["MASTER_ADDR"]
    server, store = None, None
    if info.world_size > 1:
        store, _, _ = next(rendezvous("env://", info.rank, info.world_size))
        if info.rank == 0:
            server = horovod.open_rendezvous(spec, address if spec.nodes == 1 else "")
            store.set("horovod_port", str(server.server_port))
        horovod.meet_at(address, store.get("horovod_port").decode())
    horovod.set_rank(spec, info)
    return server, store
