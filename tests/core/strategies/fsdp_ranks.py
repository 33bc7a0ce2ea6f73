"""Two ranks train a small network under FSDP, once for each case; started by torchrun."""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ddl_core.checkpoint import load, save
from ddl_core.step import TrainState
from ddl_core.strategies import fsdp
from ddl_core.strategies.fsdp import FSDP
from tests.core.strategies.deepspeed_ranks import Batches, build, network, result, spec, train

UNIT = 100  # so that this network has several


def make(group: FSDP, fields: dict) -> TrainState:
    group.spec = spec("fsdp", gpus_per_node=2, **fields)
    model = network()
    if group.rank == 1:
        with torch.no_grad():
            model[0].weight.zero_()  # rank 0's weights must come
    return build(group.spec, group, model)


def batches(group: FSDP, subject: TrainState) -> Batches:
    return Batches(group.rank, subject.spec.virtual_workers, subject.spec.accumulation)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.scale * self.linear(rows)


def goes_on_in(group: FSDP, fields: dict) -> list[str]:
    """Return the type in which a network with a weight of its own goes on: one rank, sharded."""
    group.spec = spec("fsdp", gpus_per_node=2, **fields)
    model, half = Scaled(), group.spec.precision == "bf16"
    types = []
    for sharded in (False, True):
        if sharded:
            group.setup(model, torch.optim.SGD(model.parameters(), 0.1))
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            types.append(str(model(torch.zeros(2, 4)).dtype))
    return types


class Collectives(TorchDispatchMode):
    """Notes the functional collectives that tensors ask for, which `full_tensor` is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "_c10d_functional":
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def undisturbed(group: FSDP, fields: dict) -> dict:
    types = goes_on_in(group, fields)
    subject = make(group, fields)
    computed: dict[str, set[str]] = {}
    hooks = [
        one.register_forward_pre_hook(
            lambda module, _: computed.setdefault(
                type(module).__name__.removeprefix("FSDP"), set()
            ).add(str(module.weight.dtype))
        )
        for one in subject.network.modules()
        if hasattr(one, "weight")
    ]
    losses = train(subject, batches(group, subject))
    for hook in hooks:
        hook.remove()
    with subject.evaluating():
        subject.evaluate_nothing(1)
    parts = [one for one in subject.network.parameters() if isinstance(one, DTensor)]
    with Collectives() as gathers:
        group.full_state(subject.network, subject.optimizer)
    return {
        **result(subject, losses),
        "computed": {kind: sorted(types) for kind, types in computed.items()},
        "goes_on_in": types,
        "gathers": gathers.names,
        "units": group.describe()["units"],
        "whole": sum(one.numel() for one in parts),
        "kept": sum(one.to_local().numel() for one in parts),
    }


def resumed(group: FSDP, fields: dict, path: Path) -> dict:
    subject = make(group, fields)
    losses = train(subject, batches(group, subject), [0])
    save(path, subject, 1)
    group.barrier()
    subject = make(group, fields)
    assert load(path, subject) == 1
    return result(subject, losses + train(subject, batches(group, subject), [1]))


def main(cases: list[dict], out: Path) -> None:
    fsdp.UNIT = UNIT
    group = FSDP(spec("fsdp", gpus_per_node=2))
    for number, fields in enumerate(cases):
        done = {
            "undisturbed": undisturbed(group, fields),
            "resumed": resumed(group, fields, out / f"{number}.checkpoint"),
        }
        torch.save(done, out / f"{number}.rank{group.rank}.pt")
    group.teardown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
