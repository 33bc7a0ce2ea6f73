import errno
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ddl_core.data.folder import list_images
from ddl_core.data.tfrecord import Example, index_path, list_records, read_index
from ddl_core.errors import DataError
from ddl_tools.datasets import convert
from ddl_tools.datasets.convert import make_indices, plan_conversion, shuffled
from ddl_tools.datasets.output import parallel
from ddl_tools.datasets.records import read_records

REALLY = convert._make_shard
SHARDS = {"train_shards": 3, "val_shards": 2}
QUIET = {"progress": False, "processes": 1}
TRAIN = [f"train-{number:05d}-of-00003" for number in range(3)]


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def counted(monkeypatch) -> Counter:
    made = Counter()

    def make_shard(task):
        made[task.path.name] += 1
        return REALLY(task)

    monkeypatch.setattr(convert, "_make_shard", make_shard)
    return made


def fail(monkeypatch, error: Exception, after: int = 0) -> None:
    left = iter(range(after))

    def make_shard(task):
        if next(left, None) is None:
            raise error
        return REALLY(task)

    monkeypatch.setattr(convert, "_make_shard", make_shard)


def test_every_image_is_in_one_record_byte_for_byte(finished_sample, finished_records):
    classes = list_images(finished_sample / "train").classes
    for split, prefix, count in (("train", "train", 3), ("val", "validation", 2)):
        found = {}
        counts = []
        for number in range(count):
            shard = finished_records / f"{prefix}-{number:05d}-of-{count:05d}"
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
        files = (finished_sample / split).rglob("*.JPEG")
        expected = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in files}
        assert found == expected
        assert max(counts) - min(counts) <= 1


def test_features_say_what_the_image_is(tmp_path):
    for split in ("train", "val"):
        folder = tmp_path / split / "a" / "inner"
        folder.mkdir(parents=True)
        Image.new("L", (40, 30)).save(folder / "grey.JPEG")
        Image.new("CMYK", (20, 10)).save(folder / "ink.JPEG")
        Image.new("RGB", (8, 9)).save(folder / "plain.JPEG", "PNG")
    plan_conversion(tmp_path).run(**QUIET)
    found = set()
    for record in read_records(tmp_path / "tfrecord" / "train-00000-of-00001"):
        features = Example(record.data)
        found.add(
            (
                features.first("image/filename"),
                features.first("image/format"),
                features.first("image/colorspace"),
                *(features.first(f"image/{name}") for name in ("channels", "width", "height")),
            )
        )
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


@pytest.mark.multiprocess
def test_the_bytes_depend_on_the_seed_and_not_on_the_processes(
    finished_sample, finished_records, tmp_path
):
    plan_conversion(finished_sample, tmp_path / "r", **SHARDS).run(progress=False, processes=2)
    assert contents(tmp_path / "r") == contents(finished_records)
    plan_conversion(finished_sample, tmp_path / "s", **SHARDS, seed=1).run(**QUIET)
    assert (tmp_path / "s" / TRAIN[0]).read_bytes() != (finished_records / TRAIN[0]).read_bytes()


def test_a_shard_holds_64_to_128_mb(finished_sample, monkeypatch):
    assert plan_conversion(finished_sample).description["shards"] == {"train": 1, "val": 1}
    monkeypatch.setattr(convert, "LARGEST_SHARD", 1e6)
    made = plan_conversion(finished_sample)
    for split, count in made.description["shards"].items():
        assert 0.5e6 < made.bytes[split] / count <= 1e6


def test_killed_conversion_continues(finished_sample, finished_records, tmp_path, counted):
    folder = tmp_path / "r"
    code = (
        "import os, signal\n"
        "from ddl_tools.datasets import convert\n"
        "left = iter(range(26))\n"  # two shards of 11, and a part of the third
        "real = convert.frame\n"
        "def frame(data):\n"
        "    if next(left, None) is None: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(data)\n"
        "convert.frame = frame\n"
        f"made = convert.plan_conversion({str(finished_sample)!r}, {str(folder)!r}, "
        "train_shards=3, val_shards=2)\n"
        "made.run(progress=False, processes=1)"
    )
    done = subprocess.run([sys.executable, "-c", code])
    assert done.returncode == -signal.SIGKILL
    assert len(list(folder.glob(".*.part"))) == 1
    with pytest.raises(DataError, match=r"lacks 1 shards: .*ddl data convert"):
        list_records(folder, "train")
    plan_conversion(finished_sample, folder, **SHARDS).run(**QUIET)
    assert set(counted) == {TRAIN[2], "validation-00000-of-00002", "validation-00001-of-00002"}
    assert contents(folder) == contents(finished_records)


@pytest.mark.parametrize("damage", ["gone", "short", "no index", "stale index"])
def test_damage_is_repaired(finished_sample, finished_records, records, counted, damage):
    shard = records / TRAIN[1]
    if damage == "gone":
        shard.unlink()
    elif damage == "short":
        os.truncate(shard, shard.stat().st_size - 1)
    elif damage == "no index":
        index_path(shard).unlink()
    else:
        index_path(shard).write_text("0 100\n")
    plan_conversion(finished_sample, records).run(**QUIET)
    assert set(counted) == {TRAIN[1]}
    assert contents(records) == contents(finished_records)


def test_other_settings_or_images_are_refused(sample, records):
    for other, match in ({"seed": 3}, "seed = 0, not 3"), ({"train_shards": 4}, "shards = .*'trai"):
        with pytest.raises(DataError, match=match):
            plan_conversion(sample, records, **other).run(**QUIET)
    (sample / "train/cat/cat_00000.JPEG").rename(sample / "train/cat/other.JPEG")
    with pytest.raises(DataError, match=r"source = \w+, not"):
        plan_conversion(sample, records).run(**QUIET)


def test_a_folder_of_the_user_is_not_touched(finished_sample, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(DataError, match="not empty and was not made by"):
        plan_conversion(finished_sample, tmp_path).run(**QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(("content", "reason"), [(b"", "is no image"), (None, "No such file")])
def test_a_bad_image_is_named_and_no_shard_is_left(sample, tmp_path, content, reason):
    made = plan_conversion(sample, tmp_path / "r", **SHARDS)
    bad = sample / "train/cat/cat_00000.JPEG"
    bad.unlink() if content is None else bad.write_bytes(content)
    with pytest.raises(DataError, match=rf"{bad}.*{reason}.*ddl data verify {sample}$"):
        made.run(**QUIET)
    assert not list((tmp_path / "r").glob(".*.part"))
    bad.write_bytes((sample / "train/moon/moon_00000.JPEG").read_bytes())
    assert made.run(**QUIET) >= 1
    assert made.run(**QUIET) == 0


def test_full_disk_is_said_before_it_is_full(finished_sample, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match=r"/r: not enough free space; the set needs 5 MB: free som"):
        plan_conversion(finished_sample, tmp_path / "r").run(**QUIET)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_cannot_be_written_keeps_the_finished_shards(
    finished_sample, tmp_path, monkeypatch, code
):
    made = plan_conversion(finished_sample, tmp_path / "r", **SHARDS)
    fail(monkeypatch, OSError(code, os.strerror(code)), after=2)
    with pytest.raises(DataError, match=rf"/r: {os.strerror(code)}; the set needs 5 MB.* choose"):
        made.run(**QUIET)
    assert sorted(path.name for path in (tmp_path / "r").glob("train-*")) == TRAIN[:2]


@pytest.fixture
def shard(records) -> Path:
    return records / TRAIN[1]


@pytest.mark.multiprocess
def test_indices_that_are_missing_or_stale_are_made(records, finished_records, shard):
    index_path(shard).unlink()
    index_path(records / TRAIN[0]).write_text("0 5\n")
    before = {path: path.stat().st_mtime_ns for path in (records / "index").iterdir()}
    assert make_indices(records, progress=False, processes=2) == (2, 3)
    changed = [path for path, time in before.items() if path.stat().st_mtime_ns != time]
    assert [path.name for path in changed] == [f"{TRAIN[0]}.idx"]
    assert contents(records) == contents(finished_records)
    shutil.rmtree(records / "index")
    assert make_indices(records, **QUIET) == (5, 0)
    assert contents(records) == contents(finished_records)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:-1],
        lambda lines: [*lines[:3], *lines[4:]],
        lambda lines: lines[1:],
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
    os.truncate(shard, shard.stat().st_size - 1)
    index_path(shard).unlink()
    with pytest.raises(DataError, match=rf"{shard} record 10: the file ends 1 bytes too early"):
        make_indices(records, **QUIET)
    assert not index_path(shard).exists()


def double(number: int) -> int:
    return 2 * number


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.multiprocess
def test_parallel_work_keeps_the_order_and_ends_with_the_first_error():
    options = {"processes": 2, "progress": False}
    assert list(parallel(double, range(100), "test", **options)) == list(range(0, 200, 2))
    with pytest.raises(DataError, match="2 processes was killed"):
        list(parallel(die, range(10), "test", **options))
