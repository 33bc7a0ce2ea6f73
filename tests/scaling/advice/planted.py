"""Evidence with parameters that are known, so that answers can be worked out by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddl_core.scaling.advice.evidence import Evidence
from ddl_core.scaling.collectives import Network
from ddl_core.scaling.gradients import resnet
from ddl_core.scaling.loading import Loading
from ddl_core.scaling.messages import Training
from ddl_core.scaling.model import Machine

BATCH = 100  # images of a rank, so that an epoch of 36,000 is 360 steps of one


def machine(point: Mapping[str, float]) -> Machine:
    """Return a machine that takes ``step_s`` for a step; its file system may have a limit."""
    limit = point.get("shared_rate", float("inf"))
    return Machine(
        point["step_s"],
        Network(gpus_per_node=4),
        Loading(shared_rate=limit),
        epoch_s=point.get("epoch_s", 0.0),
    )


def evidence(
    admitted: Sequence[Mapping[str, float]] = ({"step_s": 1.0},), **changes: Any
) -> Evidence:
    fields: dict[str, Any] = {
        "machine": "Example Booster",
        "strategy": "ddp",
        "loader": "native",
        "model": "resnet50",
        "dataset": "imagenet",
        "gpus_per_node": 4,
        "sizes": (4, 8),
        "rests_on": ("two runs",),
        "admitted": admitted,
        "noise": 0.01,
        "training": Training(resnet("resnet50"), "ddp", BATCH),
        "built": machine,
    }
    return Evidence(**fields | changes)
