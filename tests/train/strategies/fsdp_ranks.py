"""Two ranks train a small network under FSDP, once for each case; started by torchrun."""

import json
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from ddl_core.train.checkpoint import load, save
from ddl_core.train.loop import Trainee
from ddl_core.train.strategies import fsdp
from ddl_core.train.strategies.fsdp import FSDP
from tests.train.strategies.deepspeed_ranks import Batches, build, network, result, spec, train

UNIT = 100  # so that this network has several


def make(group: FSDP, fields: dict) -> Trainee:
    group._spec = spec("fsdp", gpus_per_node=2, **fields)
    model = network()
    if group.rank == 1:
        with torch.no_grad():
            model[0].weight.zero_()  # rank 0's weights must come
    return build(group._spec, group, model)


def batches(group: FSDP, subject: Trainee) -> Batches:
    return Batches(group.rank, subject.spec.virtual_workers, subject.spec.accumulation)


def undisturbed(group: FSDP, fields: dict) -> dict:
    subject = make(group, fields)
    losses = train(subject, batches(group, subject))
    parts = [one for one in subject.network.parameters() if isinstance(one, DTensor)]
    return {
        **result(subject, losses),
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
