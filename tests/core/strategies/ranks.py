"""Two ranks train a small network, once for each case of a strategy; started by torchrun."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ddl_core.checkpoint import load, save
from ddl_core.device import check_compiled
from ddl_core.registry import resolve
from ddl_core.step import TrainState
from ddl_core.strategies.base import Strategy
from tests.core.strategies import deepspeed_ranks, fsdp_ranks
from tests.core.strategies.two_ranks import (
    Batches,
    Fields,
    build,
    network,
    result,
    size,
    spec,
    train,
)

PLAIN = SimpleNamespace(
    prepare=lambda group: None,
    undisturbed=lambda group, subject, batches: result(subject, train(subject, batches)),
    forget=lambda group: None,
)
OWN: dict[str, Any] = {"deepspeed": deepspeed_ranks, "fsdp": fsdp_ranks}


def make(group: Strategy, own: Any, fields: Fields) -> tuple[TrainState, Batches]:
    """Make a network whose weights only rank 0 knows."""
    group.spec = run = spec(gpus_per_node=size(fields), **fields)
    own.prepare(group)
    model = network()
    if group.rank > 0:
        with torch.no_grad():
            next(model.parameters()).zero_()  # rank 0's weights must come
    return build(run, group, model), Batches(group.rank, run.virtual_workers, run.accumulation)


def resumed(group: Strategy, own: Any, fields: Fields, path: Path) -> dict:
    subject, batches = make(group, own, fields)
    losses = train(subject, batches, [0])
    save(path, subject, 1)
    group.barrier()
    del subject
    own.forget(group)
    subject, batches = make(group, own, fields)
    assert load(path, subject) == 1
    return result(subject, losses + train(subject, batches, [1]))


def main(cases: list[Fields], out: Path) -> None:
    name = cases[0]["strategy"]
    run = spec(name, gpus_per_node=size(cases[0]))
    own, group = OWN.get(name, PLAIN), resolve("strategy", name)(run)
    for number, fields in enumerate(cases):
        done = {"undisturbed": own.undisturbed(group, *make(group, own, fields))}
        own.forget(group)
        if fields.get("compile"):
            check_compiled()
        done["resumed"] = resumed(group, own, fields, out / f"{number}.checkpoint")
        own.forget(group)
        torch.save(done, out / f"{number}.rank{group.rank}.pt")
    group.teardown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
