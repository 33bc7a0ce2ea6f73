import os
from pathlib import Path

import pytest

from ddl_core.datasets import shards
from ddl_core.datasets.indices import make_indices
from ddl_core.datasets.shards import index_path, read_index
from ddl_core.errors import DataError

QUIET = {"progress": False, "processes": 1}


@pytest.fixture
def shard(records) -> Path:
    return records / "train-00001-of-00003"


def test_an_index_made_later_is_the_one_of_the_conversion(records, finished_records, shard):
    for path in (records / "index").iterdir():
        path.unlink()
    (records / "index").rmdir()
    assert make_indices(records, **QUIET) == (5, 0)
    for path in (finished_records / "index").iterdir():
        assert (records / "index" / path.name).read_bytes() == path.read_bytes()
    assert index_path(shard).read_text().startswith("0 ")


@pytest.mark.multiprocess
def test_only_what_is_missing_or_stale_is_made(records, shard):
    index_path(shard).unlink()
    index_path(records / "train-00000-of-00003").write_text("0 5\n")
    before = {path: path.stat().st_mtime_ns for path in (records / "index").iterdir()}
    assert make_indices(records, progress=False, processes=2) == (2, 3)
    changed = [path for path, time in before.items() if path.stat().st_mtime_ns != time]
    assert [path.name for path in changed] == ["train-00000-of-00003.idx"]
    assert len(read_index(shard)) == 11


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:-1], r"ends at byte [\d,]+, train-00001-of-00003 at [\d,]+; make it"),
        (lambda lines: [*lines[:3], *lines[4:]], "has gaps between its records"),
        (lambda lines: lines[1:], "has gaps between its records"),
        (lambda lines: ["zero one\n", *lines[1:]], "is no index of `offset size` lines"),
        (lambda lines: ["17\n", *lines], "is no index of `offset size` lines"),
        (lambda lines: [f"0 {2**70}\n", *lines], "is no index of `offset size` lines"),
        (lambda _: [], "ends at byte 0, "),
    ],
)
def test_an_index_that_does_not_fit(records, shard, change, message):
    lines = index_path(shard).read_text().splitlines(keepends=True)
    index_path(shard).write_text("".join(change(lines)))
    with pytest.raises(
        DataError, match=rf"{index_path(shard)} {message}.*ddl data index {records}"
    ):
        read_index(shard)


def test_what_is_missing_is_named(records, shard):
    index_path(shard).unlink()
    with pytest.raises(DataError, match=rf"the index {index_path(shard)} is missing; .* index"):
        read_index(shard)
    shard.unlink()
    with pytest.raises(DataError, match=rf"{shard} is missing"):
        read_index(shard)


def test_a_damaged_shard_gets_no_index(records, shard):
    os.truncate(shard, shard.stat().st_size - 1)
    index_path(shard).unlink()
    with pytest.raises(DataError, match=rf"{shard} record 10: the file ends 1 bytes too early"):
        make_indices(records, **QUIET)
    assert not index_path(shard).exists()


def test_a_folder_that_may_not_be_written_to(records, shard, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    index_path(shard).unlink()
    monkeypatch.setattr(shards, "write_whole", refuse)
    with pytest.raises(DataError, match=r"(?s)cannot write into .*/index: Perm.* ln -s .*/train-"):
        make_indices(records, **QUIET)


def test_a_folder_of_links_serves_instead(finished_records, tmp_path):
    links = tmp_path / "links"
    links.mkdir()
    for path in finished_records.glob("*-of-*"):
        (links / path.name).symlink_to(path)
    assert make_indices(links, **QUIET) == (5, 0)


def test_a_folder_without_records(tmp_path):
    with pytest.raises(DataError, match=r"has no files train-\*-of-\* or validation"):
        make_indices(tmp_path)
