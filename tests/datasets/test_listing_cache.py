"""The lists of a data folder are made once for all ranks of a node."""

import errno
import fcntl
import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ddl_core.data import folder, tfrecord
from ddl_core.data.folder import list_images
from ddl_core.data.tfrecord import list_records


@pytest.fixture(autouse=True)
def _memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without stored lists, on which lists of small sets are stored at once."""
    place = tmp_path / "node"
    place.mkdir()
    monkeypatch.setenv("DDL_TMPDIR", str(place))
    monkeypatch.setattr(folder, "SETTLED_S", -1)
    monkeypatch.setattr(folder, "MIN_CACHED_BYTES", 1)


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
    walk = os.walk

    def count(top, **options):
        counted[Path(top).name] += 1
        return walk(top, **options)

    monkeypatch.setattr(os, "walk", count)
    return counted


def listed(images) -> list[tuple[str, int]]:
    return [(images.name(index), images.label(index)) for index in range(len(images))]


def test_four_ranks_of_a_node_list_a_folder_once(split, walks) -> None:
    lists = [list_images(split) for _ in range(4)]
    assert walks == {"a": 1, "b": 1, "c": 1}
    assert {tuple(listed(images)) for images in lists} == {tuple(listed(folder.scan(split, "abc")))}
    assert len({images.fingerprint() for images in lists}) == 1
    # Another run's classes are another numbering of the same names.
    assert list_images(split, ("a", "b", "bb", "c")).labels.tolist() == [0] * 3 + [1] * 3 + [3] * 3
    assert sum(walks.values()) == 6


def test_a_folder_without_locks_ends_no_run(split, walks, monkeypatch) -> None:
    def refuse(*_arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert listed(list_images(split)) == listed(list_images(split))
    assert walks == {"a": 1, "b": 1, "c": 1}


def test_lists_that_nobody_uses_are_removed_after_a_month(split, tmp_path) -> None:
    list_images(split)
    (used,) = tmp_path.glob("node/*/listings/*.npz")
    old, other = used.with_stem("0" * 64), used.with_stem("mine")
    for file in (used, old, other, old.with_suffix(".lock")):
        file.touch()
        os.utime(file, (0, 0))
    list_images(split)  # is used, and so is not old
    add_class(split)
    list_images(split)
    assert used.exists()
    assert other.exists()
    assert not old.exists()
    assert not old.with_suffix(".lock").exists()


def add_class(split: Path) -> None:
    (split / "d").mkdir()
    (split / "d" / "d0.jpg").touch()


@pytest.mark.parametrize(
    "change",
    [
        lambda split: (split / "b" / "new.jpg").touch(),
        lambda split: (split / "b" / "b1.jpg").rename(split / "b" / "b9.jpg"),
        lambda split: (split / "b" / "inner" / "x.jpg").touch(),  # "b" itself does not change
        add_class,
    ],
    ids=["add", "rename", "inner", "class"],
)
def test_a_folder_that_changed_is_listed_again(split, change) -> None:
    (split / "b" / "inner").mkdir()
    before = listed(list_images(split))
    change(split)
    after = listed(list_images(split))
    assert after != before
    assert after == listed(folder.scan(split, folder.class_folders(split)))


def test_indices_are_read_once(finished_records, monkeypatch) -> None:
    read: Counter = Counter()
    real = tfrecord.read_index

    def count(shard: Path):
        read[shard.name] += 1
        return real(shard)

    monkeypatch.setattr(tfrecord, "read_index", count)
    lists = [list_records(finished_records, "train") for _ in range(4)]
    assert len(read) == 3
    assert set(read.values()) == {1}
    assert len({records.fingerprint() for records in lists}) == 1
    assert lists[0].read(31) == lists[3].read(31)


def _look_slowly(place: Path, asked, answers) -> None:
    def look() -> tuple[folder.Arrays, bool]:
        asked.put(os.getpid())
        time.sleep(1)
        return {"numbers": np.arange(3)}, True

    folder.SETTLED_S = -1
    answers.put(folder.cached_on_node([place], look)["numbers"].tolist())


@pytest.mark.multiprocess
def test_ranks_that_start_together_wait_for_the_first(split) -> None:
    context = multiprocessing.get_context("fork")
    asked, answers = context.Queue(), context.Queue()
    ranks = [context.Process(target=_look_slowly, args=(split, asked, answers)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    assert [answers.get(timeout=60) for _ in ranks] == [[0, 1, 2]] * 3
    for rank in ranks:
        rank.join()
    asked.get(timeout=1)
    assert asked.empty()
