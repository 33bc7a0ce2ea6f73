"""What a split is recognised by."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ddl_core.data import contents, folder
from ddl_core.data.contents import look_into
from ddl_core.data.folder import ImageList, list_images
from ddl_core.data.formats import EncodedDataset
from ddl_core.data.tfrecord import list_records
from ddl_core.errors import DataError
from ddl_tools.datasets.convert import plan_conversion
from tests.pictures import write_pictures

List = Callable[[Path], EncodedDataset]


def in_folder(root: Path) -> EncodedDataset:
    return list_images(root / "train")


def in_shards(root: Path) -> EncodedDataset:
    return list_records(root / "tfrecord", "train")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = write_pictures(tmp_path / "set", 24, 8)
    plan_conversion(made, train_shards=3).run(processes=1)
    return made


def overwrite(file: Path) -> None:
    """Change a byte of an image in place, and nothing else that can be seen from outside."""
    times, content = file.stat(), bytearray(file.read_bytes())
    content[content.index(b"\xff\xd8") + 200] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("images", [in_folder, in_shards])
def test_moved_data_are_the_same_and_changed_ones_are_not(images: List, root: Path) -> None:
    first = look_into(images(root))
    moved = root.rename(root.with_name("moved"))
    assert look_into(images(moved)) == first
    overwrite(Path(contents.files_and_images(images(moved))[0][0]))
    changed = look_into(images(moved))
    assert changed != first
    assert changed[:2] == first[:2]


def test_size_is_seen_of_a_file_that_is_not_read(root: Path, monkeypatch) -> None:
    monkeypatch.setattr(contents, "LEAST", 1)
    images = list_images(root / "train")
    _, (read,) = contents.files_and_images(images)
    other = Path(images.path((read + 1) % len(images)))
    first = look_into(images)
    overwrite(other)
    assert look_into(images) == first  # one in a hundred is no proof
    other.write_bytes(other.read_bytes() + b"\0")
    found = look_into(images)
    assert found.bytes == first.bytes + 1
    assert found.sample != first.sample


def test_a_node_reads_a_large_set_once_until_it_changes(root: Path, tmp_path, monkeypatch) -> None:
    place = tmp_path / "node"
    place.mkdir()
    monkeypatch.setenv("DDL_TMPDIR", str(place))
    monkeypatch.setattr(folder, "SETTLED_S", -1)
    monkeypatch.setattr(contents, "SETTLED_S", -1)
    monkeypatch.setattr(contents, "KEPT_FROM", 1)
    images, reads = list_images(root / "train"), []
    read = ImageList.read
    monkeypatch.setattr(ImageList, "read", lambda self, i: reads.append(i) or read(self, i))
    first = look_into(images)
    assert len(reads) == 24
    assert look_into(images) == first
    assert len(reads) == 24
    overwrite(Path(images.path(0)))  # the time of a change of state is not to be set back
    assert look_into(images) != first
    assert len(reads) == 48


def test_a_file_that_is_gone_is_named(root: Path) -> None:
    images = list_images(root / "train")
    Path(images.path(5)).unlink()
    with pytest.raises(DataError, match=Path(images.path(5)).name):
        look_into(images)
