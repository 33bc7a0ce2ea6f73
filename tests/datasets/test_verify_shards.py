import io
import os

import pytest
from PIL import Image

from ddl_core.datasets.indices import make_indices
from ddl_core.datasets.shards import index_path, read_index
from ddl_core.datasets.tfrecord import ENCODED, FILENAME, LABEL, example, frame
from ddl_core.datasets.verify import verify
from ddl_core.errors import DataError
from tests.datasets.published import write_published

SHARD = "train-00001-of-00003"


def check(folder, **options):
    return verify(folder, progress=False, processes=1, **options)


def found(report) -> set[tuple[str, str]]:
    return {(problem.kind, problem.path.partition(" ")[0]) for problem in report.problems}


def flip(path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def jpeg(mode: str = "RGB", kind: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (40, 30)).save(buffer, kind)
    return buffer.getvalue()


def test_a_finished_set_is_ok_and_reported_like_its_folder(finished_sample, finished_records):
    report, folder = check(finished_records, checksums=True), check(finished_sample)
    assert report.ok
    assert not report.problems
    assert report.has_manifest
    assert report.classes == 16
    assert {name: split.as_dict() for name, split in report.splits.items()} == {
        name: split.as_dict() for name, split in folder.splits.items()
    }
    assert report.text().endswith("\nok")


@pytest.mark.multiprocess
def test_the_report_does_not_depend_on_the_processes(records):
    flip(records / SHARD, 1000)
    one, two = check(records), verify(records, progress=False, processes=2)
    assert one.as_dict() == two.as_dict()
    assert not two.ok


def test_a_flipped_byte_is_found_by_its_checksum_alone(records):
    offset, size = read_index(records / SHARD)[4].tolist()
    flip(records / SHARD, offset + size // 2)
    report = check(records)
    assert [(problem.kind, problem.path) for problem in report.problems] == [
        ("checksum", f"{SHARD} record 4")
    ]
    assert report.splits["train"].images == 32
    assert not report.ok
    assert found(check(records, checksums=True)) == {("checksum", SHARD), ("changed", SHARD)}


def test_checksums_find_what_fits_its_own_checksum(records):
    other = records / "validation-00000-of-00002"
    size = (records / SHARD).stat().st_size
    data = other.read_bytes()[: read_index(other)[:4, 1].sum()]
    padding = frame(b"\0" * (size - len(data) - 16))
    (records / SHARD).write_bytes(data + padding)
    assert (records / SHARD).stat().st_size == size
    details = [problem.detail for problem in check(records, checksums=True).problems]
    assert any("the checksum differs from that of shards.jsonl" in detail for detail in details)


def test_a_truncated_shard(records):
    os.truncate(records / SHARD, (records / SHARD).stat().st_size - 1)
    report = check(records)
    assert found(report) == {("broken_shard", SHARD), ("changed", SHARD), ("index", SHARD)}
    details = " ".join(problem.detail for problem in report.problems)
    assert "record 10: the file ends 1 bytes too early" in details
    assert "10 records, shards.jsonl says 11" in details
    assert report.splits["train"].images == 31


def test_a_flipped_byte_in_a_length(records):
    flip(records / SHARD, int(read_index(records / SHARD)[3, 0]))
    kinds = found(check(records))
    assert kinds == {("broken_shard", SHARD), ("changed", SHARD), ("index", SHARD)}


@pytest.mark.parametrize("ours", [True, False])
def test_a_deleted_shard(records, ours):
    (records / SHARD).unlink()
    if not ours:
        (records / "shards.jsonl").unlink()
    assert found(check(records)) == {("missing", SHARD)}


def test_a_split_that_is_gone(records):
    (records / "shards.jsonl").unlink()
    for path in records.glob("validation-*"):
        path.unlink()
    assert ("missing", "validation-*") in found(check(records))


def test_an_unfinished_set(records):
    log = records / "shards.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    assert found(check(records)) == {("extra", "validation-00001-of-00002")}


def test_counts_are_those_of_the_log(records):
    log = records / "shards.jsonl"
    log.write_text(log.read_text().replace('"images":32', '"images":33'))
    assert found(check(records)) == {("changed", "shards.jsonl")}
    log.write_text(log.read_text().replace('"records":10', '"records":11'))
    problems = [problem.detail for problem in check(records).problems]
    assert problems == ["10 records, shards.jsonl says 11"]


@pytest.mark.parametrize("change", ["gone", "stale", "shifted"])
def test_an_index_that_does_not_fit(records, change):
    index = index_path(records / SHARD)
    if change == "gone":
        index.unlink()
    elif change == "stale":
        index.write_text("0 100\n")
    else:  # it ends where the file ends
        (_, first), (_, second), *rest = read_index(records / SHARD).tolist()
        lines = [(0, first + 1), (first + 1, second - 1), *map(tuple, rest)]
        index.write_text("".join(f"{offset} {size}\n" for offset, size in lines))
    assert found(check(records)) == {("index", SHARD)}


def test_every_kind_of_bad_record_is_named(tmp_path):
    whole = jpeg()
    data = {
        "zero_byte": {ENCODED: b"", LABEL: 1},
        "truncated": {ENCODED: whole[:-30], LABEL: 1},
        "unreadable": {ENCODED: b"no image", LABEL: 1},
        "grey": {ENCODED: jpeg("L"), LABEL: 1},
        "not_jpeg": {ENCODED: jpeg(kind="PNG"), LABEL: 1, FILENAME: b"a.JPEG"},
        "label": {ENCODED: whole, LABEL: 0},
        "bad_record": {LABEL: 1},
        "fine": {ENCODED: jpeg(kind="PNG"), LABEL: 1, FILENAME: b"a.png"},
    }
    folder = tmp_path / "tf"
    folder.mkdir()
    records = [frame(example(features)) for features in data.values()]
    (folder / "train-00000-of-00001").write_bytes(b"".join(records) + frame(b"\xff\xff"))
    (folder / "validation-00000-of-00001").write_bytes(frame(example({ENCODED: whole, LABEL: 1})))
    make_indices(folder, progress=False, processes=1)
    report = check(folder)
    assert [(problem.kind, problem.path) for problem in report.problems] == [
        *(
            (kind, f"train-00000-of-00001 record {number}" + " a.JPEG" * (kind == "not_jpeg"))
            for number, kind in enumerate(data)
            if kind != "fine"
        ),
        ("bad_record", "train-00000-of-00001 record 8"),
    ]
    assert not report.ok


def test_labels_of_one_split_only_and_beyond_the_classes(records):
    log = records / "shards.jsonl"
    log.write_text(log.read_text().replace('"tissue"]', '"tissue","more"]'))
    assert check(records).ok  # a class may be without images, as in the folder it may not
    log.write_text(log.read_text().replace(',"tissue","more"]', "]"))
    problems = {problem.detail for problem in check(records).problems}
    assert problems == {"label 16 of 15 classes"}


def test_a_published_set(tmp_path):
    images = {"train": [jpeg(), jpeg(), jpeg()], "validation": [jpeg()]}
    write_published(tmp_path / "tf", images, shards=1)
    make_indices(tmp_path / "tf", progress=False, processes=1)
    report = check(tmp_path / "tf", checksums=True)
    assert [tuple(problem) for problem in report.problems] == [("train_only", "label 2", "")]
    assert not report.has_manifest
    assert (report.splits["train"].images, report.splits["val"].images) == (3, 1)


def test_a_damaged_log(records):
    (records / "shards.jsonl").write_text("{\n")
    with pytest.raises(DataError, match=r"shards.jsonl is damaged"):
        check(records)
