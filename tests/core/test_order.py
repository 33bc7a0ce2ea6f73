"""Who sees which image when."""

import pytest

from ddl_core.config import RunSpec
from ddl_core.data import sampling
from ddl_core.data.sampling import (
    BatchSampler,
    count_batches,
    eval_batches,
    steps_per_epoch,
    train_batches,
)
from ddl_core.errors import SpecError

ORDER = [[9, 11, 4, 5, 6, 3], [2, 10, 0, 1, 7, 8]]


def spec(workers: int, accumulation: int = 1, batch: int = 4, **fields) -> RunSpec:
    return RunSpec(
        strategy="ddp" if workers > 1 else "single",
        gpus_per_node=workers,
        accumulation=accumulation,
        local_batch_size=batch,
        **fields,
    )


def images_of_steps(run: RunSpec, images: int) -> list[set[int]]:
    """Return the images of each step of an epoch; no two workers may share one."""
    steps: list[set[int]] = [set() for _ in range(steps_per_epoch(run, images))]
    for rank in range(run.world_size):
        batches = list(train_batches(run, images, 3, rank))
        assert len(batches) == len(steps) * run.accumulation
        for number, batch in enumerate(batches):
            steps[number // run.accumulation].update(batch.tolist())
    assert all(len(step) == run.global_batch_size for step in steps)
    return steps


@pytest.mark.parametrize("images", [64, 67, 95])
def test_the_images_of_a_step_do_not_depend_on_how_workers_are_spread(images):
    spreads = (spec(8), spec(2, 4), spec(1, 8))
    real, mixed, virtual = (images_of_steps(run, images) for run in spreads)
    assert real == mixed == virtual
    assert set.union(*real) <= set(range(images))
    assert len(set.union(*real)) == images // 32 * 32  # only the last batch is dropped


def test_epochs_repeats_and_seeds_shuffle_differently_but_repeatably():
    def first(epoch: int = 0, **fields: int) -> list[int]:
        return next(train_batches(spec(1, batch=32, **fields), 500, epoch, 0)).tolist()

    assert first() == first()
    variants = [first(), first(1), first(repeat=1), first(seed=1)]
    assert len({tuple(order) for order in variants}) == 4


def test_the_order_is_the_same_in_every_environment() -> None:
    """Published weights follow from it, and NumPy may change how it permutes."""
    batches = [one.tolist() for one in train_batches(spec(1, batch=6), 12, 3, 0)]
    assert batches == ORDER


def test_a_global_batch_larger_than_the_set_names_both_numbers():
    with pytest.raises(SpecError, match=r"global batch of 16 .* training set of 15"):
        steps_per_epoch(spec(2, 2), 15)


@pytest.mark.parametrize("images", [1, 3, 50, 64, 67])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_evaluation_counts_every_image_once(images, workers):
    run = spec(workers)
    ranks = [list(eval_batches(run, images, rank, workers)) for rank in range(workers)]
    seen = [index for batches in ranks for batch in batches for index in batch.tolist()]
    assert sorted(seen) == list(range(images))
    counts = [count_batches(run, "eval", images, rank, workers) for rank in range(workers)]
    assert counts == [len(batches) for batches in ranks]


def test_an_epochs_order_is_drawn_before_the_clock_starts(monkeypatch) -> None:
    drawn = []
    real = sampling.epoch_order
    monkeypatch.setattr(sampling, "epoch_order", lambda *of: drawn.append(of[2]) or real(*of))
    plan = BatchSampler(spec(1), "train", 64, 0, 1)
    assert drawn == []
    plan.epoch = 3
    assert drawn == [3]
    first = list(plan)
    assert drawn == [3]  # nothing is left for the window
    assert len(first) == len(plan) == 16
    assert list(plan) == first  # a second pass of the same epoch
    plan.epoch = 4
    assert list(plan) != first
    assert drawn == [3, 3, 4]
