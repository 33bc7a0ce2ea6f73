import io
import os
import shutil
import struct

import pytest
from PIL import Image

from ddl_core.data.tfrecord import DESCRIPTION, ENCODED, LABEL, index_path, read_index
from ddl_core.errors import DataError
from ddl_tools.datasets.convert import make_indices
from ddl_tools.datasets.records import FILENAME, example, frame
from ddl_tools.datasets.sample import MANIFEST
from ddl_tools.datasets.verify import verify
from tests.datasets.published import write_published

SHARD = "train-00001-of-00003"


def check(folder):
    return verify(folder, processes=1)


def found(report) -> set[tuple[str, str]]:
    return {(problem.kind, problem.path) for problem in report.problems}


def in_shards(report) -> set[tuple[str, str]]:
    return {(problem.kind, problem.path.partition(" ")[0]) for problem in report.problems}


def encoded(mode: str = "RGB", file_format: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (40, 30)).save(buffer, file_format)
    return buffer.getvalue()


def huge_jpeg(side: int) -> bytes:
    """A small JPEG whose header claims to be `side` pixels high and wide."""
    content = encoded()
    start = content.index(b"\xff\xc0") + 5
    return content[:start] + struct.pack(">HH", side, side) + content[start + 4 :]


def flip(path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_whole_set_is_ok_as_files_and_as_records(finished_sample, finished_records):
    for folder in (finished_sample, finished_records):
        report = check(folder)
        assert report.ok
        assert not report.problems
        for split, count in (("train", 32), ("val", 16)):
            found = report.splits[split]
            assert (found.images, len(found.classes)) == (count, 16)
            files = (finished_sample / split).rglob("*.JPEG")
            assert found.bytes == sum(path.stat().st_size for path in files)
        assert report.text().endswith("\nok")


def test_every_kind_of_bad_file_is_named(sample):
    (sample / MANIFEST).unlink()
    cat = sample / "train/cat"
    whole = (cat / "cat_00000.JPEG").read_bytes()
    bad = {
        "zero_byte": b"",
        "truncated": whole[: len(whole) // 2],
        "unreadable": b"not an image",
        "too_large": huge_jpeg(20_000),
        "grey": encoded("L"),
        "cmyk": encoded("CMYK"),
        "not_rgb": encoded("P", "PNG"),
    }
    for kind, content in bad.items():
        (cat / f"{kind}.JPEG").write_bytes(content)
    (cat / "honest.png").write_bytes(encoded("RGB", "PNG"))
    (cat / "cut_by_one_byte.JPEG").write_bytes(whole[:-1])
    (cat / "cut_in_the_header.JPEG").write_bytes(whole[:60])
    (cat / "bomb.JPEG").write_bytes(huge_jpeg(10_000))  # Pillow warns here, and refuses 20,000
    Image.new("1", (1, 2_000_000)).save(cat / "thin.png")
    Image.new("1", (100, 1)).save(cat / "thick_enough.png")
    (cat / "nowhere.JPEG").symlink_to(cat / "gone")
    os.mkfifo(cat / "fifo.JPEG")
    report = check(sample)
    expected = {(kind, f"train/cat/{kind}.JPEG") for kind in bad}
    expected |= {
        ("truncated", f"train/cat/cut_{where}.JPEG") for where in ("by_one_byte", "in_the_header")
    }
    expected |= {("unreadable", f"train/cat/{name}.JPEG") for name in ("nowhere", "fifo")}
    expected |= {("too_large", f"train/cat/{name}") for name in ("bomb.JPEG", "thin.png")}
    expected |= {("not_rgb", "train/cat/thick_enough.png"), ("not_jpeg", "train/cat/not_rgb.JPEG")}
    assert found(report) == expected
    assert report.counts["truncated"] == 3
    assert not report.ok


def test_warnings_alone_are_ok(sample):
    (sample / MANIFEST).unlink()
    (sample / "train/cat/grey.JPEG").write_bytes(encoded("L"))
    report = check(sample)
    assert report.ok
    assert "warning: 1 x grey (one channel instead of RGB)" in report.text()
    assert "grey.JPEG" not in report.text()


def test_what_no_loader_reads_is_named(sample):
    (sample / MANIFEST).unlink()
    (sample / "train/packed.tar").touch()
    (sample / "train/cat/photo.jfif").touch()
    for folder in ("train/.Trash-1000", "val/cat/.ipynb_checkpoints"):
        (sample / folder).mkdir()
        shutil.copy(sample / "train/cat/cat_00000.JPEG", sample / folder / "0.JPEG")
    report = check(sample)
    assert report.ok
    assert found(report) == {
        ("no_folder", "train/packed.tar"),
        ("no_image", "train/cat/photo.jfif"),
        ("hidden", "train/.Trash-1000"),
        ("hidden", "val/cat/.ipynb_checkpoints"),
    }


def test_classes_of_one_split_only_and_empty_ones(sample):
    (sample / MANIFEST).unlink()
    shutil.rmtree(sample / "val/cat")
    assert check(sample).ok  # it can be trained and evaluated with
    shutil.rmtree(sample / "train/moon")
    (sample / "train/nothing").mkdir()
    assert found(check(sample)) == {
        ("train_only", "train/cat"),
        ("train_only", "train/nothing"),
        ("val_only", "val/moon"),
        ("empty_class", "train/nothing"),
    }


def test_differences_from_the_manifest(sample):
    cat = sample / "train/cat"
    (cat / "cat_00000.JPEG").rename(cat / "other.JPEG")
    shutil.copy(sample / "train/moon/moon_00000.JPEG", cat / "cat_00001.JPEG")
    changed = sample / "val/cat/cat_00000.JPEG"
    flip(changed, changed.stat().st_size // 2)
    assert found(check(sample)) == {
        ("missing", "train/cat/cat_00000.JPEG"),
        ("extra", "train/cat/other.JPEG"),
        ("changed", "train/cat/cat_00001.JPEG"),
        ("changed", "val/cat/cat_00000.JPEG"),
    }


def test_another_programs_manifest_is_ignored_and_a_damaged_one_refused(sample):
    (sample / MANIFEST).write_text('{"name": "web app"}')
    assert check(sample).ok
    for damaged in ('{"format": "ddl-sample", ', "{" * 5000, '[{"file": "a.jpg"}]'):
        (sample / MANIFEST).write_text(damaged)
        with pytest.raises(DataError, match=r"manifest.json is damaged.*data sample.*rename"):
            check(sample)


def test_a_flipped_byte_of_a_record_is_found_by_its_checksum(records):
    offset, size = read_index(records / SHARD)[4].tolist()
    flip(records / SHARD, offset + size // 2)
    report = check(records)
    assert found(report) == {("checksum", f"{SHARD} record 4")}
    assert report.splits["train"].images == 32
    assert not report.ok


def test_a_truncated_shard(records):
    os.truncate(records / SHARD, (records / SHARD).stat().st_size - 1)
    report = check(records)
    assert in_shards(report) == {("broken_shard", SHARD), ("index", SHARD), ("missing", "train")}
    details = " ".join(problem.detail for problem in report.problems)
    assert "record 10: the file ends 1 bytes too early" in details
    assert "31 records of 32 images" in details


@pytest.mark.parametrize("ours", [True, False])
def test_a_deleted_shard_and_a_deleted_split(records, ours):
    (records / SHARD).unlink()
    if not ours:
        (records / DESCRIPTION).unlink()
    assert in_shards(check(records)) == {("missing", SHARD)}
    for path in records.glob("validation-*"):
        path.unlink()
    gone = {f"validation-0000{n}-of-00002" for n in (0, 1)} if ours else {"validation-*"}
    assert in_shards(check(records)) == {("missing", name) for name in (SHARD, *gone)}


@pytest.mark.parametrize("is_there", [False, True])
def test_an_index_that_does_not_fit(records, is_there):
    index = index_path(records / SHARD)
    if is_there:  # and ends where the file ends
        (_, first), (_, second), *rest = read_index(records / SHARD).tolist()
        lines = [(0, first + 1), (first + 1, second - 1), *map(tuple, rest)]
        index.write_text("".join(f"{offset} {size}\n" for offset, size in lines))
    else:
        index.unlink()
    assert in_shards(check(records)) == {("index", SHARD)}


def test_every_kind_of_bad_record_is_named(tmp_path):
    whole = encoded()
    data = {
        "zero_byte": {ENCODED: b"", LABEL: 1},
        "truncated": {ENCODED: whole[:-30], LABEL: 1},
        "unreadable": {ENCODED: b"no image", LABEL: 1},
        "grey": {ENCODED: encoded("L"), LABEL: 1},
        "not_jpeg": {ENCODED: encoded("RGB", "PNG"), LABEL: 1, FILENAME: b"a.JPEG"},
        "label": {ENCODED: whole, LABEL: 0},
        "bad_record": {LABEL: 1},
        "fine": {ENCODED: encoded("RGB", "PNG"), LABEL: 1, FILENAME: b"a.png"},
    }
    folder = tmp_path / "tf"
    folder.mkdir()
    records = [frame(example(features)) for features in data.values()]
    (folder / "train-00000-of-00001").write_bytes(b"".join(records) + frame(b"\xff\xff"))
    (folder / "validation-00000-of-00001").write_bytes(frame(example({ENCODED: whole, LABEL: 1})))
    make_indices(folder, processes=1)
    report = check(folder)
    shard = "train-00000-of-00001"
    expected = {(kind, f"{shard} record {n}") for n, kind in enumerate(data) if kind != "fine"}
    expected = {(kind, at + " a.JPEG" * (kind == "not_jpeg")) for kind, at in expected}
    assert found(report) == expected | {("bad_record", f"{shard} record 8")}
    assert len(report.problems) == len(data)
    assert not report.ok


def test_a_published_set(tmp_path):
    images = {"train": [encoded()] * 3, "validation": [encoded()]}
    write_published(tmp_path / "tf", images, shards=1)
    make_indices(tmp_path / "tf", processes=1)
    report = check(tmp_path / "tf")
    assert [tuple(problem) for problem in report.problems] == [("train_only", "train/label 2", "")]
    assert [one.images for one in report.splits.values()] == [3, 1]
