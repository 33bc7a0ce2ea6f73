"""What a rank of `ranks.py` does under FSDP alone."""

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ddl_core.checkpoint import weights_sha256
from ddl_core.step import TrainState
from ddl_core.strategies import fsdp
from ddl_core.strategies.fsdp import FSDP
from tests.core.strategies.two_ranks import Batches, result, train


def prepare(group: FSDP) -> None:
    """Divide the network into several units."""
    fsdp.UNIT = 100


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.scale * self.linear(rows)


def goes_on_in(group: FSDP) -> list[str]:
    """Return the type in which a network with a weight of its own goes on: one rank, sharded."""
    model, half = Scaled(), group.spec.precision == "bf16"
    types = []
    for sharded in (False, True):
        if sharded:
            group.setup(model, torch.optim.SGD(model.parameters(), 0.1))
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            types.append(str(model(torch.zeros(2, 4)).dtype))
    return types


def hashes(group: FSDP, subject: TrainState) -> list[str]:
    """Return the hash of the weights, and that after the last rank has changed its own."""
    before = weights_sha256(subject.network, group)
    own = [one.to_local() for one in subject.network.parameters() if isinstance(one, DTensor)]
    if group.rank == group.world_size - 1:
        with torch.no_grad():
            own[0].add_(1)
    return [before, weights_sha256(subject.network, group)]


class Collectives(TorchDispatchMode):
    """Notes the functional collectives that tensors ask for, which `full_tensor` is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "_c10d_functional":
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def undisturbed(group: FSDP, subject: TrainState, batches: Batches) -> dict:
    """Train, and note what is gathered."""
    computed: dict[str, set[str]] = {}
    hooks = [
        one.register_forward_pre_hook(
            lambda module, _: computed.setdefault(
                type(module).__name__.removeprefix("FSDP"), set()
            ).add(str(module.weight.dtype))
        )
        for one in subject.network.modules()
        if hasattr(one, "weight") and not group.spec.compile
    ]
    losses = train(subject, batches)
    for hook in hooks:
        hook.remove()
    with subject.evaluating():
        subject.evaluate_nothing(1)
    breaks = list(counters["graph_break"]) if group.spec.compile else None
    parts = [one for one in subject.network.parameters() if isinstance(one, DTensor)]
    with Collectives() as gathers:
        group.full_state(subject.network, subject.optimizer)
    return {
        **result(subject, losses),
        "breaks": breaks,
        "computed": {kind: sorted(types) for kind, types in computed.items()},
        "gathers": gathers.names,
        "communication": group.describe(),
        "units": group.describe()["units"],
        "hashes": hashes(group, subject),
        "goes_on_in": goes_on_in(group),  # the last: it sets another network up
        "whole": sum(one.numel() for one in parts),
        "kept": sum(one.to_local().numel() for one in parts),
    }


def forget(group: FSDP) -> None:
    """Do nothing: FSDP keeps nothing of a network that is gone."""
