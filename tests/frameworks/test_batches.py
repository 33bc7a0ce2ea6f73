"""Numpy batches: torch's native pixels to the last bit, and threads that end and pass errors on."""

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from ddl_core.config import RunSpec
from ddl_core.errors import DataError
from ddl_core.loaders.native import Native
from ddl_core.loaders.synthetic import POOL
from ddl_core.registry import LOADERS
from ddl_tools.frameworks import trainer
from ddl_tools.frameworks.batches import NativeArrays, SyntheticArrays
from tests.core.loaders.paths import EVAL, FORMATS, TRAIN, make_data
from tests.core.loaders.test_bad_data import replace_records

RANKS = 2
CAT = "cat_00000.JPEG"
SETTINGS = {
    "strategy": "ddp",
    "gpus_per_node": RANKS,
    "image_size": 64,
    "classes": 16,
    "local_batch_size": 4,
    "loader_workers": 2,
    "train_images": TRAIN,
    "eval_images": EVAL,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Return photographs as files and as TFRecord; one of them is cut off."""
    folder = make_data(tmp_path_factory.mktemp("data") / "sample")
    file = folder / "train" / "cat" / CAT
    content = file.read_bytes()[:1000]
    file.write_bytes(content)
    for shard in (folder / "tfrecord").glob("train-*-of-*[0-9]"):
        replace_records(shard, {CAT: content})
    return folder


def spec(**fields) -> RunSpec:
    return RunSpec(**{**SETTINGS, **fields})


def native(data, split="train", rank=0, layout="NCHW", **fields) -> NativeArrays:
    return NativeArrays(spec(**fields), data, split, rank, RANKS, layout)


def live() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("images")}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("split", ["train", "eval"])
@pytest.mark.parametrize("rank", range(RANKS))
def test_batches_are_those_of_torch_to_the_last_bit(rank, split, form, data):
    fields = {"data_format": form, "train_images": None}  # the unreadable one as well
    alone = spec(loader_workers=0, **fields)  # processes forked beside our threads may hang
    theirs = Native(alone, data, split, rank, RANKS, torch.device("cpu"))
    for layout, axes in (("NCHW", (0, 1, 2, 3)), ("NHWC", (0, 2, 3, 1))):
        ours = native(data, split, rank, layout, **fields)
        assert (len(ours), ours.images, ours.classes) == (len(theirs), theirs.images, 16)
        assert ours.fingerprint == theirs.fingerprint
        for epoch in (0, 3):
            ours.set_epoch(epoch)
            theirs.set_epoch(epoch)
            for (images, labels), (want, of) in zip(ours, theirs, strict=True):
                assert (images.dtype, labels.dtype) == (np.float32, np.int32)
                np.testing.assert_array_equal(images, want.numpy().transpose(axes))
                np.testing.assert_array_equal(labels, of.numpy())
            np.testing.assert_array_equal(np.concatenate(ours.seen), np.concatenate(theirs.seen))
            assert ours.corrupt_images == theirs.corrupt_images


def all_of(source: NativeArrays) -> list[np.ndarray]:
    return [images for images, _ in source]


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 1), (3, 5)])
def test_threads_change_nothing_but_the_time(workers, prefetch, data):
    want = all_of(native(data, loader_workers=1))
    found = all_of(native(data, loader_workers=workers, loader_prefetch=prefetch))
    np.testing.assert_array_equal(np.stack(found), np.stack(want))


def test_as_many_batches_are_begun_ahead_as_asked_for(data):
    source = native(data, loader_prefetch=2)
    asked = []
    source._plan = (asked.append(places) or places for places in list(source._plan))
    batches = iter(source)
    next(batches)
    assert len(asked) == 1 + 2
    next(batches)
    assert len(asked) == 2 + 2
    batches.close()


def test_no_thread_is_left_whichever_way_an_epoch_ends(data):
    source = native(data)
    list(source)
    assert not live()
    for _ in source:
        assert live()
        break
    assert not live()


def test_an_error_in_a_thread_reaches_who_asks_for_the_batch(data, tmp_path):
    folder = Path(shutil.copytree(data, tmp_path / "data"))
    source = native(folder)
    batches = iter(source)
    next(batches)
    shutil.rmtree(folder / "train")
    with pytest.raises(DataError, match="gone now"):
        list(batches)
    assert not live()


def made_up(rank=0, split="train", layout="NCHW", **fields) -> SyntheticArrays:
    values = {"image_size": 8, "train_images": 2 * 4 * RANKS * POOL, "eval_images": 19, **fields}
    return SyntheticArrays(spec(loader="synthetic", **values), None, split, rank, RANKS, layout)


def test_made_up_images_are_normal_and_each_rank_has_its_own():
    source = made_up()
    shown = [images for images, _ in source]
    assert len(shown) == len(source) == 2 * POOL
    assert all(one is other for one, other in zip(shown[:POOL], shown[POOL:], strict=True))
    together = np.stack(shown[:POOL])
    assert together.shape == (POOL, 4, 3, 8, 8)
    assert together.dtype == np.float32
    assert abs(together.mean()) < 0.1
    assert abs(together.std() - 1) < 0.1
    for other in (made_up(rank=1), made_up(seed=1), made_up(repeat=1)):
        assert not np.array_equal(next(iter(other))[0], shown[0])
    source.set_epoch(1)
    assert not np.array_equal(next(iter(source))[0], shown[0])
    source.set_epoch(0)
    np.testing.assert_array_equal(next(iter(source))[0], shown[0])


def test_made_up_evaluation_has_every_image_once():
    sizes = []
    for rank in range(RANKS):
        source = made_up(rank, "eval", "NHWC")
        for images, labels in source:
            assert images.shape == (len(labels), 8, 8, 3)
            assert labels.dtype == np.int32
            assert labels.min() >= 0
            assert labels.max() < 16
            sizes.append(len(labels))
    assert sizes == [4, 4, 2, 4, 4, 1]


def test_every_loader_that_the_frameworks_may_be_asked_for_is_there():
    assert set(trainer.LOADERS) == {
        name for name, one in LOADERS.items() if "tensorflow" in one.frameworks
    }
