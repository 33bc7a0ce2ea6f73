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
from filelock import FileLock
from PIL import Image

from ddl_core.datasets import bulk, convert
from ddl_core.datasets.convert import LOCK, plan_conversion, shuffled
from ddl_core.datasets.folder import list_images
from ddl_core.datasets.manifest import SHARD_LOG, read_shard_log
from ddl_core.datasets.shards import index_path, read_index
from ddl_core.datasets.tfrecord import Example, read_records
from ddl_core.errors import DataError

REALLY = convert.make_shard
SHARDS = {"train_shards": 3, "val_shards": 2}
QUIET = {"progress": False, "processes": 1}
TRAIN = [f"train-{number:05d}-of-00003" for number in range(3)]


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def counted(monkeypatch) -> Counter:
    made = Counter()

    def make_shard(task):
        made[task.path.name] += 1
        return REALLY(task)

    monkeypatch.setattr(convert, "make_shard", make_shard)
    return made


def fail(monkeypatch, error: Exception, after: int = 0) -> None:
    left = iter(range(after))

    def make_shard(task):
        if next(left, None) is None:
            raise error
        return REALLY(task)

    monkeypatch.setattr(convert, "make_shard", make_shard)


def test_every_image_is_in_one_record_byte_for_byte(finished_sample, finished_records):
    classes = list_images(finished_sample / "train").classes
    for split, prefix, shards in (("train", "train", 3), ("val", "validation", 2)):
        found = {}
        counts = []
        for number in range(shards):
            records = list(
                read_records(finished_records / f"{prefix}-{number:05d}-of-{shards:05d}")
            )
            counts.append(len(records))
            for record in records:
                features = Example(record.data)
                assert record.intact
                synset = features.blob("image/class/synset").decode()
                assert classes[features.label()] == synset
                name = f"{synset}/{features.blob('image/filename').decode()}"
                found[name] = features.blob("image/encoded")
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
                features.blob("image/filename"),
                features.blob("image/format"),
                features.blob("image/colorspace"),
                *(features.number(f"image/{name}") for name in ("channels", "width", "height")),
            )
        )
    assert found == {
        (b"inner/grey.JPEG", b"JPEG", b"Grayscale", 1, 40, 30),
        (b"inner/ink.JPEG", b"JPEG", b"CMYK", 4, 20, 10),
        (b"inner/plain.JPEG", b"PNG", b"RGB", 3, 8, 9),
    }


def test_the_log_and_the_indices_fit_the_shards(finished_sample, finished_records):
    plan, entries = read_shard_log(finished_records)
    assert plan.classes == list_images(finished_sample / "train").classes
    assert {name: (split.images, split.shards) for name, split in plan.splits.items()} == {
        "train": (32, 3),
        "val": (16, 2),
    }
    assert [entry.file for entry in entries[:3]] == TRAIN
    for entry in entries:
        path = finished_records / entry.file
        assert path.stat().st_size == entry.bytes
        assert len(read_index(path)) == entry.records
        places = [record.offset for record in read_records(path)]
        assert read_index(path)[:, 0].tolist() == places


def test_images_are_shuffled_alike_for_ever():
    assert shuffled(0, "train", 12).tolist() == [6, 11, 3, 8, 1, 4, 5, 9, 2, 7, 10, 0]
    orders = [shuffled(seed, split, 1000) for seed in (0, 1) for split in ("train", "val")]
    assert all(np.array_equal(np.sort(order), np.arange(1000)) for order in orders)
    assert len({order.tobytes() for order in orders}) == 4


@pytest.mark.multiprocess
def test_the_bytes_do_not_depend_on_the_processes(finished_sample, finished_records, tmp_path):
    plan_conversion(finished_sample, tmp_path / "r", **SHARDS).run(progress=False, processes=2)
    assert contents(tmp_path / "r") == contents(finished_records)


def test_another_seed_is_another_order(finished_sample, finished_records, tmp_path):
    plan_conversion(finished_sample, tmp_path / "r", **SHARDS, seed=1).run(**QUIET)
    assert (tmp_path / "r" / TRAIN[0]).read_bytes() != (finished_records / TRAIN[0]).read_bytes()


def test_a_shard_holds_64_to_128_mb(finished_sample, monkeypatch):
    plan = plan_conversion(finished_sample).plan
    assert {split.shards for split in plan.splits.values()} == {1}
    monkeypatch.setattr(convert, "LARGEST_SHARD", 1e6)
    made = plan_conversion(finished_sample)
    for split in made.plan.splits:
        assert 0.5e6 < made.bytes[split] / made.plan.splits[split].shards <= 1e6


def test_the_size_is_foreseen(finished_sample, finished_records):
    planned = plan_conversion(finished_sample, finished_records)
    size = sum(len(content) for content in contents(finished_records).values())
    assert size <= sum(planned.bytes.values()) < 1.01 * size
    assert f"train: 32 images, about {planned.bytes['train'] / 1e9:.3f} GB" in planned.text()


def test_second_call_does_nothing(finished_sample, records, counted):
    before = {path: path.stat().st_mtime_ns for path in records.rglob("*")}
    done = plan_conversion(finished_sample, records).run(**QUIET)  # as many shards as there are
    assert done == read_shard_log(records)[1]
    assert {path: path.stat().st_mtime_ns for path in records.rglob("*")} == before
    assert not counted


def test_killed_conversion_continues(finished_sample, finished_records, tmp_path, counted):
    folder = tmp_path / "r"
    code = (
        "import os, signal\n"
        "from ddl_core.datasets import convert\n"
        "from ddl_core.datasets.convert import plan_conversion\n"
        "left = iter(range(26))\n"  # two shards of 11, and a part of the third
        "real = convert.frame\n"
        "def frame(data):\n"
        "    if next(left, None) is None: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(data)\n"
        "convert.frame = frame\n"
        f"made = plan_conversion({str(finished_sample)!r}, {str(folder)!r}, "
        "train_shards=3, val_shards=2)\n"
        "made.run(progress=False, processes=1)"
    )
    done = subprocess.run([sys.executable, "-c", code])
    assert done.returncode == -signal.SIGKILL
    assert len(read_shard_log(folder)[1]) == 2
    assert len(list(folder.glob(".*.part"))) == 1
    plan_conversion(finished_sample, folder, **SHARDS).run(**QUIET)
    assert set(counted) == {TRAIN[2], "validation-00000-of-00002", "validation-00001-of-00002"}
    assert contents(folder) == contents(finished_records)


def test_a_line_that_was_cut_off_is_made_again(finished_sample, finished_records, records, counted):
    log = records / SHARD_LOG
    log.write_bytes(log.read_bytes()[:-9])
    plan_conversion(finished_sample, records).run(**QUIET)
    assert set(counted) == {"validation-00001-of-00002"}
    assert contents(records) == contents(finished_records)


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
    assert {**contents(records), SHARD_LOG: b""} == {**contents(finished_records), SHARD_LOG: b""}


def test_other_settings_are_refused(finished_sample, records):
    for other in ({"seed": 3}, {"train_shards": 4}):
        made = plan_conversion(finished_sample, records, **other)
        with pytest.raises(DataError, match=r"other settings \(seed 0, shards: 3 train, 2 v.*for"):
            made.run(**QUIET)


def test_other_images_are_refused(sample, records):
    (sample / "train/cat/cat_00000.JPEG").rename(sample / "train/cat/other.JPEG")
    with pytest.raises(DataError, match="was made from other images than"):
        plan_conversion(sample, records).run(**QUIET)


def test_a_folder_of_the_user_is_not_touched(finished_sample, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(DataError, match="not empty and was not made by"):
        plan_conversion(finished_sample, tmp_path).run(**QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("content", [b"", b"{\n", b'{"format": "ddl-tfrecord"}\n'])
def test_a_damaged_log_is_refused(finished_sample, records, content):
    (records / SHARD_LOG).write_bytes(content)
    with pytest.raises(DataError, match=r"shards.jsonl is damaged.*delete"):
        plan_conversion(finished_sample, records)


def test_a_damaged_line_amid_others_is_refused(finished_sample, records):
    lines = (records / SHARD_LOG).read_bytes().splitlines(keepends=True)
    lines[2] = b"{\n"
    (records / SHARD_LOG).write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=r"shards.jsonl is damaged"):
        plan_conversion(finished_sample, records)


def test_a_source_that_is_none(tmp_path):
    with pytest.raises(DataError, match=r"(?s)No such file.*expected an ImageNet-like folder"):
        plan_conversion(tmp_path / "nowhere")


def test_more_shards_than_images(finished_sample):
    with pytest.raises(DataError, match="val: 17 shards asked for 16 images"):
        plan_conversion(finished_sample, val_shards=17)


def test_a_class_name_that_is_no_text(sample):
    for split in ("train", "val"):
        (sample / split / "cat").rename(sample / split / os.fsdecode(b"\xff"))
    with pytest.raises(DataError, match=r"class folder '\\udcff': rename it"):
        plan_conversion(sample)


@pytest.mark.parametrize(("content", "reason"), [(b"", "is no image"), (None, "No such file")])
def test_a_bad_image_is_named_and_no_shard_is_left(sample, tmp_path, content, reason):
    made = plan_conversion(sample, tmp_path / "r", **SHARDS)
    bad = sample / "train/cat/cat_00000.JPEG"
    bad.unlink() if content is None else bad.write_bytes(content)
    with pytest.raises(DataError, match=rf"{bad}.*{reason}.*ddl data verify {sample}$"):
        made.run(**QUIET)
    assert not list((tmp_path / "r").glob(".*.part"))
    (sample / "train/cat/cat_00000.JPEG").write_bytes(
        (sample / "train/moon/moon_00000.JPEG").read_bytes()
    )
    assert len(made.run(**QUIET)) == 5


def test_full_disk_is_said_before_it_is_full(finished_sample, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match=r"/r: not enough free space; the set needs 5 MB: free som"):
        plan_conversion(finished_sample, tmp_path / "r").run(**QUIET)


def test_disk_that_fills_up_keeps_what_is_made(finished_sample, tmp_path, monkeypatch):
    fail(monkeypatch, OSError(errno.ENOSPC, "No space left on device"), after=2)
    with pytest.raises(DataError, match=r"No space left on device; the set needs 5 MB: free some"):
        plan_conversion(finished_sample, tmp_path / "r", **SHARDS).run(**QUIET)
    assert [entry.file for entry in read_shard_log(tmp_path / "r")[1]] == TRAIN[:2]


def test_read_only_folder(finished_sample, tmp_path, monkeypatch):
    fail(monkeypatch, OSError(errno.EROFS, "Read-only file system"))
    with pytest.raises(DataError, match=r"/r: Read-only file system; .* 5 MB in a folder that you"):
        plan_conversion(finished_sample, tmp_path / "r").run(**QUIET)


def test_finished_set_on_a_read_only_disk(finished_sample, records, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(bulk, "FileLock", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert len(plan_conversion(finished_sample, records).run(**QUIET)) == 5


def test_a_second_process_waits_for_the_first(finished_sample, tmp_path, monkeypatch, counted):
    folder = tmp_path / "r"
    folder.mkdir()
    first = FileLock(folder / LOCK)
    first.acquire()
    said = []
    monkeypatch.setattr(bulk.tqdm, "write", lambda text: (said.append(text), first.release()))
    plan_conversion(finished_sample, folder, **SHARDS).run(**QUIET)
    assert said == [f"another process is making {folder}: waiting for it"]
    assert counted.total() == 5
