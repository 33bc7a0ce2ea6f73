"""Data and loaders that the tests of all data paths share."""

import gc
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ddl_core.config import RunSpec
from ddl_core.loaders import base
from ddl_core.loaders.base import Loader
from ddl_tools.datasets.convert import plan_conversion
from ddl_tools.datasets.sample import make_sample

CPU = torch.device("cpu")
# 51 of 64 images: odd, so that 2 and 4 ranks cannot share them evenly.
TRAIN, EVAL = 51, 15


def dali_is_there() -> bool:
    """Say whether DALI is there; in CI it has to be."""
    there = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
    if not there and os.environ.get("CI"):
        raise AssertionError("CI tests the real DALI, which is missing here: run `make env`")
    return there


with_dali = pytest.mark.skipif(not dali_is_there(), reason="DALI is missing; run `make env`")
DALI = pytest.param("dali_cpu", marks=with_dali)
ALIKE = ["native", "turbo", "memory"]  # with the same crops; those of DALI are its own
LOADERS = [*ALIKE, DALI]
FORMATS = ["folder", "tfrecord"]


def make_data(folder: Path) -> Path:
    """Make photographs of ImageNet's size, as files and as TFRecord."""
    make_sample(folder, train_per_class=4, val_per_class=1)
    plan_conversion(folder, train_shards=3, val_shards=2).run(processes=1)
    return folder


def open_loader(
    name: str,
    data: Path,
    split: str = "train",
    rank: int = 0,
    world_size: int = 1,
    device: torch.device = CPU,
    **fields: Any,
) -> Loader:
    """Open a loader on few and small images."""
    gc.collect()  # a pipeline of DALI that a forked loader process would collect hangs in there
    values = {
        "loader": name,
        "strategy": "ddp",
        "gpus_per_node": world_size,
        "image_size": 64,
        "classes": 16,
        "local_batch_size": 4,
        # No processes that load, which whole runs have: test_runs. DALI needs a thread.
        "loader_workers": 1 if name.startswith("dali") else 0,
        "train_images": TRAIN,
        "eval_images": EVAL,
    }
    spec = RunSpec(**{**values, **fields})
    return base.open_loader(spec, data, split, rank, world_size, device)


def images_of(loader: Loader, epoch: int = 0) -> dict[int, tuple[torch.Tensor, int]]:
    """Return image and label by number."""
    loader.set_epoch(epoch)
    shown = [
        pair
        for images, labels in loader
        for pair in zip(images.clone(), labels.tolist(), strict=True)
    ]
    assert loader.seen is not None
    return dict(zip(np.concatenate(loader.seen).tolist(), shown, strict=True))
