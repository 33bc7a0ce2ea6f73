"""Random batches: which worker sees what, and how much memory they take."""

import weakref
from functools import partial

import pytest
import torch

from ddl_core.config import RunSpec
from ddl_core.loaders import synthetic
from ddl_core.loaders.synthetic import POOL, Synthetic
from ddl_core.schedules import derive_seed

CPU = torch.device("cpu")
STEPS = POOL + 1
WORKERS = 4


def loader(rank: int = 0, ranks: int = 1) -> Synthetic:
    """Return that of one of `ranks`, which stand for four workers together."""
    spec = RunSpec(
        strategy="ddp",
        gpus_per_node=ranks,
        accumulation=WORKERS // ranks,
        loader="synthetic",
        image_size=8,
        classes=10,
        local_batch_size=2,
        train_images=STEPS * WORKERS * 2,
    )
    return Synthetic(spec, None, "train", rank, ranks, CPU)


def by_worker(ranks: int) -> list[list[torch.Tensor]]:
    """Return the images of each worker, in order of the steps."""
    found = []
    for rank in range(ranks):
        images = [images for images, _ in loader(rank, ranks)]
        own = WORKERS // ranks
        found += [images[micro::own] for micro in range(own)]
    return found


assert_same = partial(torch.testing.assert_close, rtol=0, atol=0)


def test_each_worker_has_images_of_its_own_wherever_it_is():
    found = by_worker(ranks=1)
    assert_same(found, by_worker(ranks=2))
    assert_same(found, by_worker(ranks=4))
    assert len({float(worker[0].sum()) for worker in found}) == WORKERS


@pytest.mark.parametrize(("split", "made"), [("train", 2), ("eval", 1)])
def test_pools_are_made_once_an_epoch_and_once_for_all_evaluations(monkeypatch, split, made):
    drawn = []
    plain = Synthetic._draw
    monkeypatch.setattr(
        Synthetic,
        "_draw",
        lambda self, *place: drawn.append(place) or plain(self, *place),
    )
    spec = RunSpec(image_size=8, local_batch_size=2, train_images=8, eval_images=8, classes=10)
    one = Synthetic(spec, None, split, 0, 1, CPU)
    for epoch in (0, 0, 1):
        one.set_epoch(epoch)
    assert len(drawn) == made


def test_the_images_are_those_of_the_seed():
    generator = torch.Generator().manual_seed(derive_seed("synthetic train", 0, 0, 0, 3))
    assert torch.equal(by_worker(ranks=1)[3][0], torch.randn(2, 3, 8, 8, generator=generator))


@pytest.mark.parametrize("room", [1, 3])
def test_workers_share_images_where_memory_does_not_hold_those_of_all(monkeypatch, room):
    alone = by_worker(ranks=1)
    monkeypatch.setattr(synthetic, "MOST_BYTES", room * POOL * 2 * 3 * 8 * 8 * 4)
    shared = by_worker(ranks=1)
    kept = {images.data_ptr() for worker in shared for images in worker}
    assert len(kept) == room * POOL
    assert_same(shared, [alone[worker % room] for worker in range(WORKERS)])
    assert_same(shared, by_worker(ranks=2))


def test_old_images_are_gone_before_new_ones_are_made(monkeypatch):
    subject = loader()
    old = [weakref.ref(images) for images, _ in subject]
    alive = []
    make = torch.randn

    def counted(*arguments, **named):
        alive.append(sum(one() is not None for one in old))
        return make(*arguments, **named)

    monkeypatch.setattr(torch, "randn", counted)
    subject.set_epoch(1)
    assert alive
    assert not any(alive)
