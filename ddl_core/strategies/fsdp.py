"""torch's `fully_shard` (FSDP2): each rank keeps its part of weights, gradients and momenta.

With `fsdp_shards`, groups of ranks keep one copy each (hybrid sharding, HSDP).
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from ddl_core.blocks import LISTS, blocks
from ddl_core.errors import SpecError
from ddl_core.strategies.base import ProcessGroup

UNIT = 1_000_000
"""Weights that are gathered together, at least."""

BF16 = MixedPrecisionPolicy(
    param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
)
"""Of weights gathered in single precision, autocast would make a copy that lives until backward."""

_MATRICES = (nn.Linear, nn.modules.conv._ConvNd, nn.MultiheadAttention)


class FSDP(ProcessGroup):
    """A torch.distributed group; the network's weights are gathered unit by unit when needed."""

    is_sharded = True

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Send rank 0's weights to all, then keep a part; `optimizer` updates that part."""
        _refuse_tied(model)
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
        names = {parameter: name for name, parameter in model.named_parameters()}
        shards = self.spec.fsdp_shards or self.world_size
        self.copies = self.world_size // shards
        shape, dimensions = (self.copies, shards), ("replicate", "shard")
        first = 0 if self.copies > 1 else 1
        mesh = init_device_mesh(self.device.type, shape[first:], mesh_dim_names=dimensions[first:])
        # A weight that is gathered inside a compiled block would break it in two.
        whole = list(blocks(model)) if self.spec.compile else []
        parts = units(model, whole)
        self._units = len(parts)
        half = self.spec.precision == "bf16" and not self.spec.compile
        cast = cast_by_autocast(model)
        if half and (kept := normalisations(model)):
            fully_shard(kept, mesh=mesh, reshard_after_forward=False)
        for module in parts:
            rest = {one for one in module.parameters() if not isinstance(one, DTensor)}
            policy = BF16 if half and rest <= cast else MixedPrecisionPolicy()
            fully_shard(module, mesh=mesh, mp_policy=policy)
        own = dict(model.named_parameters())
        for group in optimizer.param_groups:
            group["params"] = [own[names[parameter]] for parameter in group["params"]]
        self.model, self.optimizer = model, optimizer
        return model, optimizer

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of whole tensors add up on each rank, as they do under DDP."""
        model = self.model
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    def full_weights(self, network: nn.Module) -> dict[str, Tensor]:
        """Gather the weights one by one."""
        return {name: _whole(value) for name, value in network.state_dict().items()}

    def full_state(self, network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Gather weights and momenta one by one."""
        own = optimizer.state_dict()
        state = {
            index: {name: _whole(value) for name, value in values.items()}
            for index, values in own["state"].items()
        }
        return {"model": self.full_weights(network), "optimizer": {**own, "state": state}}

    def load_full_state(
        self, network: nn.Module, optimizer: Optimizer, saved: dict[str, Any]
    ) -> None:
        """Keep this rank's part of weights and momenta."""
        own = network.state_dict()
        network.load_state_dict({k: _part(value, own[k]) for k, value in saved["model"].items()})
        weights = [one for group in optimizer.param_groups for one in group["params"]]
        state = {
            index: {name: _part(value, weights[index]) for name, value in values.items()}
            for index, values in saved["optimizer"]["state"].items()
        }
        optimizer.load_state_dict({**saved["optimizer"], "state": state})

    def describe(self) -> dict[str, Any]:
        """Add the units that are gathered together, and the ranks of one copy if there are several.

        Gloo's collectives are waited for.
        """
        overlap = self.device.type == "cuda"
        own = {"units": self._units, "unit_elements": UNIT, "overlap": overlap}
        groups = {"shards": self.spec.fsdp_shards} if self.copies > 1 else {}
        return {**super().describe(), **own, **groups}


def units(model: nn.Module, whole: Collection[nn.Module] = ()) -> list[nn.Module]:
    """Return the modules whose own weights are gathered together, the innermost first.

    The smallest ones that hold `UNIT` weights which no unit inside them has; `model` is the last.
    None is inside a module of `whole`.
    Only parts of lists are taken, such as blocks: weights are gathered when a module is called, and
    other modules may be read without a call, as the projection inside torch's attention.
    """
    found: list[nn.Module] = []
    taken: set[nn.Parameter] = set()
    parts = {part for one in model.modules() if isinstance(one, LISTS) for part in one.children()}
    parts -= {part for one in whole for part in one.modules() if part is not one}
    for module in [*model.modules()][:0:-1]:  # parts come before what they are part of
        own = set(module.parameters()) - taken
        is_called = module in parts and not isinstance(module, nn.ModuleList | nn.ModuleDict)
        if is_called and sum(one.numel() for one in own) >= UNIT:
            found.append(module)
            taken |= own
    return [*found, model]


def normalisations(model: nn.Module) -> list[nn.Module]:
    """Return the layers whose weights are vectors: autocast computes them in single precision."""
    return [
        one
        for one in model.modules()
        if [*one.parameters(recurse=False)] and all(own.ndim < 2 for own in one.parameters())
    ]


def cast_by_autocast(model: nn.Module) -> set[nn.Parameter]:
    """Return the weights that autocast computes with in bf16.

    A unit with another, such as a position embedding, is gathered in single precision: its type
    would become that of the activations.
    """
    layers = [one for one in model.modules() if isinstance(one, _MATRICES)]
    return {own for one in layers for own in one.parameters()}


def _refuse_tied(model: nn.Module) -> None:
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    once = {name for name, _ in model.named_parameters()}
    if tied := [name for name in names if name not in once]:
        raise SpecError(
            f"strategy 'fsdp' cannot share out weights that two layers have in common, as "
            f"{tied[0]} is; use another strategy"
        )


def _whole(value: Any) -> Any:
    """Return a sharded tensor in main memory of the first rank of a copy; elsewhere an empty one.

    Not by `full_tensor`: Gloo in torch 2.13 may free the long name of its collective twice.
    """
    if not isinstance(value, DTensor):
        return value
    own, rows = value.to_local(), value.shape[0]
    group = value.device_mesh.get_group(value.device_mesh.ndim - 1)
    ranks = dist.get_world_size(group)
    most = -(-rows // ranks)  # of rows on a rank; the last ranks may have fewer
    padded = own.new_zeros(most, *value.shape[1:])
    padded[: len(own)] = own
    whole = own.new_empty(most * ranks, *value.shape[1:])
    dist.all_gather_into_tensor(whole, padded, group=group)
    return whole[:rows].cpu() if dist.get_rank(group) == 0 else whole.new_empty(0, device="cpu")


def _part(value: Any, like: Tensor) -> Any:
    """Return this rank's part of a tensor that all ranks have read."""
    if not isinstance(value, Tensor) or not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    on_device = value.to(like.device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)
