"""How loader processes are started, and how long they live."""

from pathlib import Path

import pytest

from ddl_core.data import sampling
from ddl_core.data.sampling import BatchSampler
from tests.core.loaders.paths import open_loader
from tests.core.test_order import spec
from tests.pictures import write_pictures


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"), 16, 8)


def lives_on(pictures: Path, split: str, **fields) -> bool:
    few = {"train_images": 16, "eval_images": 8, "loader_workers": 1}
    return open_loader("native", pictures, split, **{**few, **fields})._loader.persistent_workers


@pytest.mark.parametrize(
    ("eval_every", "kept"), [(0, False), (1, True), (4, True), (5, False), (30, False)]
)
def test_processes_of_frequent_evaluations_live_on(pictures, eval_every, kept) -> None:
    assert lives_on(pictures, "eval", eval_every=eval_every) is kept
    assert lives_on(pictures, "train", eval_every=eval_every)


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
