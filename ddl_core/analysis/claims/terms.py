"""The terms of the paper's runs: what a run needs, measured or planned, to judge its statements."""

from collections.abc import Mapping
from typing import Any

from ddl_core.analysis.claims.statements import EPOCHS, LOCAL_BATCH
from ddl_core.analysis.paper import BASE_WORLD_SIZE, FORMATS

# data/paper/settings.csv; the image size follows from the multiply-adds of its networks.
_TASK = {
    "dataset": "imagenet",
    "classes": 1000,
    "image_size": 224,
    "local_batch_size": LOCAL_BATCH,
}
_OF_SPEED = {"accumulation": 1, "gpus_per_node": BASE_WORLD_SIZE}
_OF_LEARNING = {"model": "resnet50", "epochs": EPOCHS, "base_lr": 0.025, "optimizer": "sgd"}


def of_speed(run: Mapping[str, Any]) -> bool:
    """Say whether a run on GPUs has the paper's terms for speed."""
    return _has(run, _TASK | _OF_SPEED) and reads_as_stated(run)


def of_learning(run: Mapping[str, Any]) -> bool:
    """Say whether a run has the paper's terms for accuracy; accumulation stands for GPUs."""
    return _has(run, _TASK | _OF_LEARNING)


def reads_as_stated(run: Mapping[str, Any]) -> bool:
    """Say whether a run's loader reads the format that it reads in the paper."""
    return bool(run["data_format"] == FORMATS.get(run["loader"]))


def _has(run: Mapping[str, Any], terms: Mapping[str, Any]) -> bool:
    return all(run[name] == wanted for name, wanted in terms.items())
