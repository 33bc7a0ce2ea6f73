"""What a node finds in a data folder is found once for all of its ranks."""

import fcntl
import multiprocessing
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ddl_core.datasets import folder, listing, shards
from ddl_core.datasets.folder import list_images
from ddl_core.datasets.shards import list_records


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node whose memory is empty, and small sets that are worth it at once."""
    place = tmp_path / "node"
    place.mkdir()
    monkeypatch.setenv("DDL_TMPDIR", str(place))
    monkeypatch.setattr(listing, "SETTLED_S", -1)
    monkeypatch.setattr(listing, "WORTH", 1)
    return place / f"ddl-{os.geteuid()}" / "listings"


@pytest.fixture
def split(tmp_path: Path) -> Path:
    for name in ("b", "a", "c"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "train" / name / f"{name}{number}.jpg").touch()
    return tmp_path / "train"


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """How often each class folder was listed."""
    counted: Counter = Counter()
    walk = folder._walk

    def count(class_dir, odd=False):
        counted[class_dir.name] += 1
        return walk(class_dir, odd)

    monkeypatch.setattr(folder, "_walk", count)
    return counted


def told(images) -> list[tuple[str, int]]:
    return [(images.name(index), images.label(index)) for index in range(len(images))]


def test_four_ranks_of_a_node_list_a_folder_once(split, walks) -> None:
    lists = [list_images(split) for _ in range(4)]
    assert walks == {"a": 1, "b": 1, "c": 1}
    assert {tuple(told(images)) for images in lists} == {tuple(told(folder.scan(split, "abc")))}
    assert len({images.fingerprint() for images in lists}) == 1
    # Another run's classes are another numbering of the same names.
    assert list_images(split, ("a", "b", "bb", "c")).labels.tolist() == [0] * 3 + [1] * 3 + [3] * 3
    assert sum(walks.values()) == 6


@pytest.mark.parametrize("change", ["add", "remove", "rename", "class"])
def test_a_folder_that_changed_is_listed_again(split, walks, change) -> None:
    before = told(list_images(split))
    if change == "add":
        (split / "b" / "new.jpg").touch()
    elif change == "remove":
        (split / "b" / "b1.jpg").unlink()
    elif change == "rename":
        (split / "b" / "b1.jpg").rename(split / "b" / "b9.jpg")
    else:
        (split / "d").mkdir()
        (split / "d" / "d0.jpg").touch()
    after = told(list_images(split))
    assert after != before
    assert after == told(folder.scan(split, folder.class_folders(split)))


def test_a_folder_inside_a_class_is_looked_into_each_time(split) -> None:
    (split / "a" / "inner").mkdir()
    assert len(list_images(split)) == 9
    (split / "a" / "inner" / "x.jpg").touch()  # the class folder itself has not changed
    assert len(list_images(split)) == 10


def test_what_changed_just_now_may_change_again(split, walks, monkeypatch) -> None:
    monkeypatch.setattr(listing, "SETTLED_S", 60)
    for _ in range(2):
        list_images(split)
    assert walks["a"] == 2


def test_a_small_set_leaves_nothing_behind(split, memory, monkeypatch) -> None:
    monkeypatch.setattr(listing, "WORTH", 10)
    list_images(split)
    assert not list(memory.iterdir())


def test_a_memory_that_is_damaged_or_not_ours_is_not_used(split, memory, walks) -> None:
    expected = told(list_images(split))
    (kept,) = memory.iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert told(list_images(split)) == expected
    memory.chmod(0o777)
    assert told(list_images(split)) == expected
    assert walks["a"] == 3


def test_indices_are_read_once(finished_records, monkeypatch) -> None:
    read: Counter = Counter()
    real = shards.read_index

    def count(shard: Path):
        read[shard.name] += 1
        return real(shard)

    monkeypatch.setattr(shards, "read_index", count)
    lists = [list_records(finished_records, "train") for _ in range(4)]
    assert len(read) == 3
    assert set(read.values()) == {1}
    assert len({records.fingerprint() for records in lists}) == 1
    assert len({lists[n].read(n) for n in range(4)}) == 4
    assert lists[0].read(31) == lists[3].read(31)


def _look_slowly(place: Path, asked, go) -> None:
    listing.SETTLED_S = -1

    def look() -> listing.Arrays:
        asked.put(os.getpid())
        go.wait(20)
        return (np.arange(3),)

    (numbers,) = listing.once_per_node([place], look, lambda arrays: True)
    asked.put(numbers.tolist())


@pytest.mark.multiprocess
def test_ranks_that_start_together_wait_for_the_first(split, memory) -> None:
    context = multiprocessing.get_context("fork")
    asked, go = context.Queue(), context.Event()
    ranks = [context.Process(target=_look_slowly, args=(split, asked, go)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    asked.get(timeout=20)  # one looks
    (lock,) = memory.glob("*.lock")
    with lock.open() as held, pytest.raises(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    go.set()
    answers = [asked.get(timeout=20) for _ in ranks]
    for rank in ranks:
        rank.join()
    assert answers == [[0, 1, 2]] * 3  # and no process id among them: nobody else has looked
