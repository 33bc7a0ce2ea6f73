"""Whole runs on every data path: ranks, worker, record."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ddl_core.config import RunSpec
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import EpochRecord, RunRecord, read_epochs, read_record, write_record
from tests.closeness import assert_far, assert_near, falls
from tests.core.loaders.paths import with_dali
from tests.launch.running import two_ranks

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("planted_names"), two_ranks]

# Decoders and resizers round differently; docs/contributing/test-tolerances.md explains this.
TOLERANCE = 2e-3

PATHS = [
    ("native", "tfrecord"),
    pytest.param("turbo", "folder", marks=pytest.mark.numeric),
]


def run(folder: Path, data: Path, **fields: Any) -> Path:
    """Run two ranks for two epochs of 48 of 51 images; return `folder`."""
    values = {
        "strategy": "ddp",
        "gpus_per_node": 2,
        "model": "tiny",
        "device": "cpu",
        "image_size": 64,
        "classes": 16,
        "train_images": 51,
        "eval_images": 15,
        "local_batch_size": 8,
        "epochs": 2,
        "warmup_epochs": 1,
        "schedule": "constant",
        "discard_steps": 0,
        "loader_workers": 1,
        "base_lr": 0.01,
    }
    spec = RunSpec(**{**values, **fields})
    write_record(folder, RunRecord.plan("test", spec, str(data)))
    run_ranks(folder)
    return folder


def rows_of(folder: Path) -> list[EpochRecord]:
    """Return the rows of training."""
    return [row for row in read_epochs(folder) if row.phase == "train"]


def state(folder: Path) -> dict[str, torch.Tensor]:
    """Return parameters and statistics after the last step."""
    model = torch.load(RunFiles(folder).checkpoint, weights_only=True)["model"]
    return {name: tensor for name, tensor in model.items() if tensor.is_floating_point()}


@pytest.fixture(scope="module")
def native(data, tmp_path_factory) -> Path:
    return run(tmp_path_factory.mktemp("native"), data, loader="native")


@pytest.mark.parametrize(("loader", "data_format"), PATHS)
def test_two_ranks_train_on_every_path(loader, data_format, data, native, tmp_path):
    done = run(tmp_path / "run", data, loader=loader, data_format=data_format)
    rows, wanted = rows_of(done), rows_of(native)
    assert [row.samples for row in rows] == [48, 48]
    assert [row.ids_sha256 for row in rows] == [row.ids_sha256 for row in wanted]
    assert rows[0].ids_sha256 != rows[1].ids_sha256
    assert [row.corrupt_images for row in rows] == [0, 0]
    if data_format == "folder":  # the same images under the same numbers
        assert_near(state(done), state(native), TOLERANCE)
        assert falls([row.loss for row in wanted])


@with_dali
@pytest.mark.parametrize(("data_format", "order"), [("folder", "plan"), ("tfrecord", "loader")])
def test_two_ranks_train_with_dali(data_format, order, data, native, tmp_path):
    done = run(tmp_path / "run", data, loader="dali_cpu", data_format=data_format)
    rows, others = rows_of(done), rows_of(native)
    assert [(row.steps, row.samples) for row in rows] == [(3, 48)] * 2
    same = [row.ids_sha256 for row in rows] == [row.ids_sha256 for row in others]
    assert same == (order == "plan")
    record = read_record(done)
    assert record.data is not None
    assert (record.loader_version, record.data.order) == (2, order)
    assert falls([row.loss for row in rows])
    ours, theirs = (
        [row for row in read_epochs(one) if row.phase == "eval"] for one in (done, native)
    )
    assert [row.ids_sha256 for row in ours] == [row.ids_sha256 for row in theirs]


@pytest.mark.numeric
def test_crops_one_pixel_off_are_seen_in_the_training(data, native, tmp_path):
    shifted = run(tmp_path / "run", data, loader="turbo_crop_shifted")
    wanted = [row.ids_sha256 for row in rows_of(native)]
    assert [row.ids_sha256 for row in rows_of(shifted)] == wanted
    assert_far(state(shifted), state(native), TOLERANCE)


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_loading_alone_is_timed_like_training(strategy, data, native, tmp_path):
    ranks = {"single": 1, "ddp": 2}[strategy]
    fields = {"strategy": strategy, "gpus_per_node": ranks, "accumulation": 3 - ranks}
    rows = rows_of(run(tmp_path / "run", data, work="load", **fields))
    assert [row.ids_sha256 for row in rows] == [row.ids_sha256 for row in rows_of(native)]
    assert [(row.steps, row.samples, row.loss, row.lr) for row in rows] == [(3, 48, None, None)] * 2
    assert [row.cold for row in rows] == [True, False]
    record = read_record(tmp_path / "run")
    assert record.status == "completed"
    assert record.weights_sha256 is None
    assert record.data is not None
    assert record.data.eval_images is None
