import multiprocessing
import os
import resource
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ddl_core.data.folder import list_images
from ddl_core.data.formats import EncodedDataset
from ddl_core.data.tfrecord import RecordList, index_path, list_records
from ddl_core.errors import DataError
from ddl_tools.datasets.convert import make_indices
from ddl_tools.datasets.records import frame
from tests.datasets.published import write_published

IMAGENET = 1_281_167


def everything(images: EncodedDataset) -> list[tuple[bytes, int]]:
    return [images.read(index) for index in range(len(images))]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("split", ["train", "val"])
def test_records_are_the_images_of_the_folder(finished_sample, finished_records, split):
    files: EncodedDataset = list_images(finished_sample / split)
    records: EncodedDataset = list_records(finished_records, split)
    assert records.classes == files.classes
    assert len(records) == len(files)
    assert sorted(everything(records)) == sorted(everything(files))
    assert len(set(everything(records))) == len(files)


def test_a_published_set_is_read_unchanged(tmp_path):
    images = {
        split: [bytes([number]) * 50 for number in range(count)]
        for split, count in (("train", 7), ("validation", 4))
    }
    write_published(tmp_path / "tf", images)
    make_indices(tmp_path / "tf", processes=1)
    train = list_records(tmp_path / "tf", "train")
    order = [0, 2, 4, 6, 1, 3, 5]
    assert everything(train) == [(images["train"][n], n % 2) for n in order]
    assert train.classes == ()
    assert len(list_records(tmp_path / "tf", "val")) == 4


def test_the_fingerprint_follows_names_and_sizes(records, tmp_path):
    first = list_records(records, "train").fingerprint()
    assert first != list_records(records, "val").fingerprint()
    moved = records.rename(tmp_path / "moved")
    assert list_records(moved, "train").fingerprint() == first
    shard = moved / "train-00002-of-00003"
    with shard.open("ab") as file:
        file.write(frame(b"more"))
    make_indices(moved, processes=1)
    assert list_records(moved, "train").fingerprint() != first


def test_few_files_are_open(finished_records, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    records = list_records(finished_records, "train")
    expected = everything(list_records(finished_records, "train"))
    before = open_files()
    for index in (0, 31, 12, 1, 30, 13, 11):
        assert records.read(index) == expected[index]
        assert open_files() <= before + 2
    del records
    assert open_files() == before


def read_all(records: RecordList, queue) -> None:
    queue.put((open_files(), everything(records)))


@pytest.mark.multiprocess
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_other_processes_read_at_the_same_time(finished_records, method):
    records = list_records(finished_records, "train")
    expected = everything(records)  # so that files are open
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    others = [context.Process(target=read_all, args=(records, queue)) for _ in range(2)]
    for other in others:
        other.start()
    for _ in range(3):
        assert everything(records) == expected
    assert [queue.get()[1] for _ in others] == [expected] * 2
    for other in others:
        other.join()
        assert other.exitcode == 0


def test_missing_shards_are_named(tmp_path, records):
    with pytest.raises(DataError, match=r"has no shards train-.*ddl data convert DIR"):
        list_records(tmp_path, "train")
    with pytest.raises(DataError, match=r"cannot read .*nowhere: No such file"):
        list_records(tmp_path / "nowhere", "val")
    for number in (0, 2):
        (records / f"train-{number:05d}-of-00003").unlink()
    with pytest.raises(DataError, match="lacks 2 shards: train-00000-of-00003, train-00002"):
        list_records(records, "train")
    (records / "train-00000-of-00004").touch()
    with pytest.raises(DataError, match="different sets in one folder"):
        list_records(records, "train")


def test_a_shard_that_changes_during_the_run(records):
    images = list_records(records, "train")
    shard = records / "train-00001-of-00003"
    os.truncate(shard, shard.stat().st_size - 1)
    where = f"{shard} record 10"
    with pytest.raises(DataError, match=f"{where}: the file has changed"):
        images.read(21)
    content = shard.read_bytes()
    shard.write_bytes(content[5:] + content[:5])
    with pytest.raises(DataError, match=f"{shard} record 0: the file has changed"):
        images.read(11)


@pytest.mark.slow
def test_the_list_of_imagenet_is_small(tmp_path):
    """Listed from disk: indices of 1.28 million records, and shards that are all hole."""
    (tmp_path / "index").mkdir()
    sizes = np.random.default_rng(0).integers(50_000, 200_000, IMAGENET // 1024)
    ends = np.cumsum(sizes)
    places = zip((ends - sizes).tolist(), sizes.tolist(), strict=True)
    index = "".join(f"{offset} {size}\n" for offset, size in places)
    for number in range(1024):
        shard = tmp_path / f"train-{number:05d}-of-01024"
        shard.touch()
        os.truncate(shard, int(ends[-1]))
        index_path(shard).write_text(index)
    tracemalloc.start()
    records = list_records(tmp_path, "train")
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(records) == IMAGENET // 1024 * 1024
    assert records.name(len(records) - 1) == "train-01023-of-01024 record 1250"
    assert held < 40 * len(records)
    assert peak < 60e6
