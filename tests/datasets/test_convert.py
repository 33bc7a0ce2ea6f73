"""Conversion to TFRecord: each image once and unchanged, whole shards, indices that fit."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ddl_core.data.folder import list_images
from ddl_core.data.tfrecord import Example, index_path, read_index
from ddl_core.errors import DataError
from ddl_tools.datasets import convert
from ddl_tools.datasets.convert import make_indices, plan_conversion, shuffled
from ddl_tools.datasets.records import read_records
from tests.datasets.conftest import IN_PROCESS, SHARDS, contents

TRAIN = [f"train-{number:05d}-of-00003" for number in range(3)]


@pytest.fixture
def shard(records) -> Path:
    return records / TRAIN[1]


def test_every_image_is_in_one_record_byte_for_byte(finished_sample, finished_records):
    classes = list_images(finished_sample / "train").classes
    for split, prefix in (("train", "train"), ("val", "validation")):
        found, counts = {}, []
        for shard in sorted(finished_records.glob(f"{prefix}-*")):
            records = list(read_records(shard))
            counts.append(len(records))
            assert read_index(shard)[:, 0].tolist() == [record.offset for record in records]
            for record in records:
                features = Example(record.data)
                assert record.intact
                synset = features.first("image/class/synset").decode()
                assert classes[features.label()] == synset
                name = f"{synset}/{features.first('image/filename').decode()}"
                found[name] = features.first("image/encoded")
        assert found == contents(finished_sample / split)
        assert len(counts) == SHARDS[f"{split}_shards"]
        assert max(counts) - min(counts) <= 1


def test_features_say_what_the_image_is(tmp_path):
    for split in ("train", "val"):
        folder = tmp_path / split / "a" / "inner"
        folder.mkdir(parents=True)
        Image.new("L", (40, 30)).save(folder / "grey.JPEG")
        Image.new("CMYK", (20, 10)).save(folder / "ink.JPEG")
        Image.new("RGB", (8, 9)).save(folder / "plain.JPEG", "PNG")
    plan_conversion(tmp_path).run(**IN_PROCESS)
    names = ("filename", "format", "colorspace", "channels", "width", "height")
    found = set()
    for record in read_records(tmp_path / "tfrecord" / "train-00000-of-00001"):
        features = Example(record.data)
        found.add(tuple(features.first(f"image/{name}") for name in names))
    assert found == {
        (b"inner/grey.JPEG", b"JPEG", b"Grayscale", 1, 40, 30),
        (b"inner/ink.JPEG", b"JPEG", b"CMYK", 4, 20, 10),
        (b"inner/plain.JPEG", b"PNG", b"RGB", 3, 8, 9),
    }


def test_images_are_shuffled_alike_by_every_numpy():
    assert shuffled(0, "train", 12).tolist() == [6, 11, 3, 8, 1, 4, 5, 9, 2, 7, 10, 0]
    orders = [shuffled(seed, split, 1000) for seed in (0, 1) for split in ("train", "val")]
    assert all(np.array_equal(np.sort(order), np.arange(1000)) for order in orders)
    assert len({order.tobytes() for order in orders}) == 4


def test_a_shard_holds_64_to_128_mb(finished_sample, monkeypatch):
    assert plan_conversion(finished_sample).description["shards"] == {"train": 1, "val": 1}
    monkeypatch.setattr(convert, "LARGEST_SHARD", 1e6)
    made = plan_conversion(finished_sample)
    for split, count in made.description["shards"].items():
        assert 0.5e6 < made.bytes[split] / count <= 1e6


def damage(shard: Path, kind: str) -> None:
    if kind == "gone":
        shard.unlink()
    elif kind == "short":
        os.truncate(shard, shard.stat().st_size - 1)
    elif kind == "no index":
        index_path(shard).unlink()
    else:
        index_path(shard).write_text("0 100\n")


@pytest.mark.parametrize("kind", ["gone", "short", "no index", "stale index"])
def test_damage_is_repaired(finished_sample, finished_records, records, shard, kind):
    damage(shard, kind)
    assert plan_conversion(finished_sample, records).run(**IN_PROCESS) == 1
    assert contents(records) == contents(finished_records)


@pytest.mark.parametrize("bytes_more", [0, 5])
def test_an_image_that_was_repaired_is_converted_again(sample, records, bytes_more, caplog) -> None:
    """Even if its size and the time of its content are the same as before."""
    image = sample / "train/cat/cat_00000.JPEG"
    times = image.stat()
    image.write_bytes(image.read_bytes()[:-9] + bytes(9 + bytes_more))
    os.utime(image, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert plan_conversion(sample, records).run(**IN_PROCESS) == 1
    assert "cat/cat_00000.JPEG" in caplog.text
    for shard in records.glob("train-*"):
        for record in read_records(shard):
            features = Example(record.data)
            if features.first("image/filename") == b"cat_00000.JPEG":
                assert features.first("image/encoded") == image.read_bytes()
    before = contents(records)
    assert plan_conversion(sample, records).run(**IN_PROCESS) == 0
    assert contents(records) == before


def test_a_copy_of_a_set_is_not_converted_again(sample, records) -> None:
    """All of its files are newer than the shards, and are compared with their records."""
    later = time.time() + 100
    for image in sample.rglob("*.JPEG"):
        os.utime(image, (later, later))
    assert plan_conversion(sample, records).run(**IN_PROCESS) == 0


def test_other_images_or_shards_are_refused(sample, records):
    with pytest.raises(DataError, match=r"shards = .*'train"):
        plan_conversion(sample, records, train_shards=4).run(**IN_PROCESS)
    (sample / "train/cat/cat_00000.JPEG").rename(sample / "train/cat/other.JPEG")
    with pytest.raises(DataError, match=r"source = \w+, not"):
        plan_conversion(sample, records).run(**IN_PROCESS)


@pytest.mark.parametrize(("content", "reason"), [(b"", "is no image"), (None, "No such file")])
def test_a_bad_image_is_named_and_no_shard_is_left(sample, tmp_path, content, reason):
    made = plan_conversion(sample, tmp_path / "r", **SHARDS)
    bad = sample / "train/cat/cat_00000.JPEG"
    bad.unlink() if content is None else bad.write_bytes(content)
    with pytest.raises(DataError, match=rf"{bad}.*{reason}.*ddl data verify {sample}$"):
        made.run(**IN_PROCESS)
    assert not list((tmp_path / "r").glob(".*.part"))
    bad.write_bytes((sample / "train/moon/moon_00000.JPEG").read_bytes())
    assert made.run(**IN_PROCESS) >= 1


@pytest.mark.multiprocess
def test_indices_that_are_missing_or_stale_are_made(records, finished_records, shard):
    damage(shard, "no index")
    damage(records / TRAIN[0], "stale index")
    assert make_indices(records, processes=2) == (2, 3)
    assert contents(records) == contents(finished_records)
    shutil.rmtree(records / "index")
    assert make_indices(records, **IN_PROCESS) == (5, 0)
    assert contents(records) == contents(finished_records)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:-1],
        lambda lines: [*lines[:3], *lines[4:]],
        lambda lines: ["zero one\n", *lines[1:]],
        lambda lines: ["17\n", *lines],
        lambda _: [],
    ],
)
def test_an_index_that_does_not_fit(records, shard, change):
    lines = index_path(shard).read_text().splitlines(keepends=True)
    index_path(shard).write_text("".join(change(lines)))
    with pytest.raises(DataError, match=rf"{index_path(shard)} .*ddl data index {records}"):
        read_index(shard)


def test_a_damaged_shard_gets_no_index(records, shard):
    damage(shard, "short")
    damage(shard, "no index")
    with pytest.raises(DataError, match=rf"{shard} record 10: the file ends 1 bytes too early"):
        make_indices(records, **IN_PROCESS)
    assert not index_path(shard).exists()
