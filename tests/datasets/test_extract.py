import errno
import shutil

import pytest

from ddl_core.datasets import extract as extract_module
from ddl_core.datasets.extract import extract
from ddl_core.datasets.shards import make_indices
from ddl_core.datasets.tfrecord import ENCODED, FILENAME, LABEL, SYNSET, example, frame
from ddl_core.errors import DataError
from tests.datasets.published import write_published

QUIET = {"progress": False, "processes": 1}


def images(folder) -> dict[str, bytes]:
    files = (path for split in ("train", "val") for path in (folder / split).rglob("*.*"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def one_record(folder, **changes):
    features = {ENCODED: b"x", LABEL: 1, SYNSET: b"n1", FILENAME: b"a.JPEG"}
    features.update({f"image/{name}": value for name, value in changes.items()})
    folder.mkdir()
    data = example({name: value for name, value in features.items() if value is not None})
    (folder / "train-00000-of-00001").write_bytes(frame(data))
    make_indices(folder, **QUIET)
    return folder


@pytest.mark.multiprocess
@pytest.mark.parametrize("processes", [1, 2])
def test_there_and_back(finished_sample, finished_records, tmp_path, processes):
    assert extract(finished_records, tmp_path / "x", progress=False, processes=processes) == 48
    assert images(tmp_path / "x") == images(finished_sample)
    assert extract(finished_records, tmp_path / "x", **QUIET) == 48


def test_a_published_set_names_its_own_classes(tmp_path):
    write_published(tmp_path / "tf", {"train": [b"a", b"b", b"c"], "validation": [b"d", b"e"]})
    make_indices(tmp_path / "tf", **QUIET)
    extract(tmp_path / "tf", tmp_path / "x", **QUIET)
    assert images(tmp_path / "x") == {
        "train/n01440764/train_00000000.JPEG": b"a",
        "train/n01443537/train_00000001.JPEG": b"b",
        "train/n01440764/train_00000002.JPEG": b"c",
        "val/n01440764/validation_00000000.JPEG": b"d",
        "val/n01443537/validation_00000001.JPEG": b"e",
    }


def test_one_split_alone(tmp_path):
    assert extract(one_record(tmp_path / "tf"), tmp_path / "x", **QUIET) == 1
    assert images(tmp_path / "x") == {"train/n1/a.JPEG": b"x"}


def test_interrupted_extraction_continues(finished_sample, finished_records, tmp_path, monkeypatch):
    left = iter(range(20))

    def write_whole(path, content):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    real = extract_module.write_whole
    with monkeypatch.context() as patch:
        patch.setattr(extract_module, "write_whole", write_whole)
        with pytest.raises(DataError, match="No space left on device; the set needs 5 MB"):
            extract(finished_records, tmp_path / "x", **QUIET)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "x").rglob("*.JPEG")}
    assert len(kept) == 19
    assert extract(finished_records, tmp_path / "x", **QUIET) == 48
    assert images(tmp_path / "x") == images(finished_sample)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_a_folder_of_the_user_is_not_touched(finished_records, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(DataError, match="is not empty and does not come from these records"):
        extract(finished_records, tmp_path, **QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_sets_are_not_mixed(finished_records, tmp_path):
    extract(one_record(tmp_path / "tf"), tmp_path / "x", **QUIET)
    with pytest.raises(DataError, match="does not come from these records"):
        extract(finished_records, tmp_path / "x", **QUIET)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filename": None}, "the record has no feature image/filename"),
        ({"filename": b"../../a.JPEG"}, "do not name a file in a class folder"),
        ({"filename": b"/etc/a.JPEG"}, "do not name a file in a class folder"),
        ({"filename": b""}, "do not name a file in a class folder"),
        ({"class/synset": None}, "the record has no feature image/class/synset"),
        ({"class/synset": b".."}, "do not name a file in a class folder"),
        ({"class/synset": b"a/b"}, "do not name a file in a class folder"),
        ({"encoded": None}, "the record has no feature image/encoded"),
    ],
)
def test_a_record_that_names_no_file(tmp_path, changes, message):
    folder = one_record(tmp_path / "tf", **changes)
    with pytest.raises(DataError, match=rf"{folder}/train-00000-of-00001 record 0: .*{message}"):
        extract(folder, tmp_path / "x", **QUIET)
    assert not images(tmp_path / "x")
    assert not (tmp_path / "a.JPEG").exists()


def test_a_label_that_no_class_has(records, tmp_path):
    log = records / "shards.jsonl"
    log.write_text(log.read_text().replace('"brick",', ""))
    with pytest.raises(DataError, match="label 16 of 15 classes"):
        extract(records, tmp_path / "x", **QUIET)


def test_records_of_the_same_name(tmp_path):
    write_published(tmp_path / "tf", {"train": [b"a"], "validation": [b"b"]}, shards=1)
    shard = tmp_path / "tf" / "train-00000-of-00001"
    shard.write_bytes(2 * shard.read_bytes())
    make_indices(tmp_path / "tf", **QUIET)
    with pytest.raises(DataError, match=r"2 records made 1 files in .*/train: some have the same"):
        extract(tmp_path / "tf", tmp_path / "x", **QUIET)


def test_damaged_or_missing_records(records, tmp_path):
    shard = records / "train-00001-of-00003"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=f"{shard} record 0: the data do not fit their checksum"):
        extract(records, tmp_path / "x", **QUIET)
    shard.unlink()
    with pytest.raises(DataError, match="lacks 1 shards: train-00001-of-00003"):
        extract(records, tmp_path / "y", **QUIET)
    shutil.rmtree(records)
    records.mkdir()
    with pytest.raises(DataError, match="has no shards train"):
        extract(records, tmp_path / "z", **QUIET)
