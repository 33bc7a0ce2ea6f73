"""All data paths show the network the same images: in training, in evaluation, on all ranks."""

import itertools
import time
from functools import cache

import numpy as np
import pytest
import torch

from ddl_core.config import RunSpec
from ddl_core.data.sampling import epoch_order
from tests.core.loaders.paths import (
    ALIKE,
    FORMATS,
    LOADERS,
    TRAIN,
    images_of,
    open_loader,
    with_dali,
)

OTHER_SHARES = [("folder", 4), ("tfrecord", 2), ("tfrecord", 4)]


@pytest.fixture(scope="module")
def native(data):
    """Return a function that reads a split by the native loader, once."""
    return cache(
        lambda split, form: images_of(open_loader("native", data, split, data_format=form))
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("name", "split"),
    [
        *itertools.product(ALIKE[1:], ["train", "eval"]),
        pytest.param("dali_cpu", "eval", marks=with_dali),
    ],
)
def test_each_image_is_that_of_the_native_loader(name, split, form, data, native):
    want = native(split, form)
    got = images_of(open_loader(name, data, split, data_format=form))
    assert got.keys() == want.keys()
    for number, (image, label) in want.items():
        assert got[number][1] == label
        # Decoders and resizers round differently; normalised, one of 256 steps is 0.017.
        difference = (got[number][0] - image).abs()
        assert difference.mean() < 0.02, (number, difference.mean())
        assert difference.quantile(0.99) < 0.1, (number, difference.quantile(0.99))


@pytest.mark.parametrize("name", LOADERS)
def test_a_batch_stays_until_the_next_is_asked_for(name, data):
    """Threads that load ahead must not write into it."""
    loader = open_loader(name, data, loader_prefetch=4)
    loader.set_epoch(0)
    for images, _ in itertools.islice(loader, 3):
        before = images.clone()
        time.sleep(0.2)  # several batches of four images are loaded meanwhile
        assert torch.equal(images, before)


@with_dali
def test_dali_takes_the_images_of_a_folder_in_the_plans_order(data):
    for epoch in (0, 1):
        want, got = (
            images_of(open_loader(name, data, rank=1, world_size=2), epoch)
            for name in ("native", "dali_cpu")
        )
        assert list(got) == list(want)
        assert all(label == want[number][1] for number, (_, label) in got.items())


@with_dali
@pytest.mark.parametrize("images", [None, TRAIN, 37])
def test_three_ranks_share_records_that_dali_orders(images, data):
    """Three files, of which none has a multiple of the ranks' batches."""
    fields = {"data_format": "tfrecord", "train_images": images, "world_size": 3}
    orders = []
    for epoch in (0, 1):
        shown = [images_of(open_loader("dali_cpu", data, rank=rank, **fields), epoch)
                 for rank in range(3)]  # fmt: skip
        used = np.concatenate([list(one) for one in shown])
        steps = (images or 64) // (3 * 4)
        assert [len(one) for one in shown] == [4 * steps] * 3
        assert len(set(used.tolist())) == 3 * 4 * steps  # as many left out as by the plan
        native = images_of(
            open_loader("native", data, local_batch_size=1, **{**fields, "world_size": 1})
        )
        assert all(
            label == native[number][1] for one in shown for number, (_, label) in one.items()
        )
        orders.append(used.tolist())
    assert orders[0] != orders[1]


@with_dali
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("images", [15, 13])
def test_evaluation_by_dali_is_the_plans_on_three_ranks(images, form, data):
    fields = {"data_format": form, "eval_images": images, "world_size": 3}
    for rank in range(3):
        want, got = (
            images_of(open_loader(name, data, "eval", rank=rank, **fields))
            for name in ("native", "dali_cpu")
        )
        assert list(got) == list(want)
        assert all(label == want[number][1] for number, (_, label) in got.items())


@pytest.mark.parametrize(
    ("form", "world_size", "name"),
    [
        *(("folder", 2, name) for name in ALIKE),
        pytest.param("folder", 2, "dali_cpu", marks=with_dali),
        *(
            pytest.param(*one, name, marks=pytest.mark.extended)
            for one in OTHER_SHARES
            for name in ALIKE
        ),
    ],
)
def test_ranks_share_an_epoch_without_overlap(name, form, world_size, data):
    fields = {"world_size": world_size, "data_format": form}
    loaders = [open_loader(name, data, rank=rank, **fields) for rank in range(world_size)]
    assert len({len(loader) for loader in loaders}) == 1
    orders = []
    for epoch in (0, 1):
        seen = [list(images_of(loader, epoch)) for loader in loaders]
        assert len({len(one) for one in seen}) == 1
        together = sorted(itertools.chain(*seen))
        used = TRAIN // (4 * world_size) * 4 * world_size
        spec = RunSpec(train_images=TRAIN)
        assert together == sorted(epoch_order(spec, TRAIN, epoch)[:used].tolist())
        orders.append(seen)
    assert orders[0] != orders[1]  # reshuffled
    resumed = [open_loader(name, data, rank=rank, **fields) for rank in range(world_size)]
    assert [list(images_of(loader, 1)) for loader in resumed] == orders[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIKE)
def test_an_image_does_not_depend_on_rank_history_or_threads(name, data):
    def shown(epoch: int, **fields) -> dict[int, torch.Tensor]:
        loader = open_loader(name, data, **{"loader_workers": 1, **fields})
        if fields.get("persistent_workers", True):
            images_of(loader, 0)
        return {number: image for number, (image, _) in images_of(loader, epoch).items()}

    want = shown(1)
    for fields in ({"loader_workers": 2}, {"persistent_workers": False}, {"local_batch_size": 3}):
        for number, image in shown(1, **fields).items():
            if number in want:
                assert torch.equal(image, want[number]), fields
    assert not all(torch.equal(image, want[number]) for number, image in shown(2).items()
                   if number in want)  # fmt: skip
