"""Damaged and unusual files: every data path decides alike, counts alike, and never hangs."""

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ddl_core.data.tfrecord import ENCODED, LABEL, Example, shards_in
from ddl_core.errors import DataError, SpecError
from ddl_tools.datasets.records import FILENAME, example, frame, read_records, write_index
from tests.core.loaders.paths import FORMATS, HERE, LOADERS, images_of, open_loader


def photo(data: Path, name: str = "cat") -> bytes:
    return (data / "train" / name / f"{name}_00000.JPEG").read_bytes()


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def as_mode(content: bytes, mode: str, kind: str = "JPEG") -> bytes:
    return saved(Image.open(io.BytesIO(content)).convert(mode), kind)


def turned(content: bytes) -> bytes:
    """Return the photograph with a note that it lies on its side, which loaders ignore."""
    image = Image.open(io.BytesIO(content))
    exif = image.getexif()
    exif[0x0112] = 6
    return saved(image, "JPEG", exif=exif, quality=95)


UNREADABLE = {
    "truncated": lambda content: content[: len(content) // 2],
    "zero bytes": lambda content: b"",
    "no image": lambda content: b"no image at all" * 100,
    "too large": lambda content: saved(Image.new("1", (20_000, 20_000)), "PNG"),
}
UNUSUAL = {
    "grey": lambda content: as_mode(content, "L"),
    "CMYK": lambda content: as_mode(content, "CMYK"),
    "PNG": lambda content: as_mode(content, "RGB", "PNG"),
    "palette PNG": lambda content: as_mode(content, "P", "PNG"),
    "PNG with alpha": lambda content: as_mode(content, "RGBA", "PNG"),
    "EXIF orientation": lambda content: turned(content),
    "data behind the end": lambda content: content + b"\0" * 10_000,
}


@pytest.fixture
def changed(data, tmp_path):
    """Return a function that makes a set with other contents by file name; both formats."""

    def change(contents: dict[str, bytes]) -> Path:
        folder = Path(shutil.copytree(data, tmp_path / "changed"))
        for name, content in contents.items():
            (folder / "train" / name.rpartition("_")[0] / name).write_bytes(content)
        for name in shards_in(folder / "tfrecord", "train"):
            replace_records(folder / "tfrecord" / name, contents)
        return folder

    return change


def replace_records(shard: Path, contents: dict[str, bytes]) -> None:
    """Put `contents` into the records of their files, if this shard has them."""
    framed = []
    for record in read_records(shard):
        found = Example(record.data)
        content = contents.get(found.first(FILENAME).decode())
        features = {ENCODED: content, LABEL: found.label() + 1}
        framed.append(frame(record.data if content is None else example(features)))
    shard.write_bytes(b"".join(framed))
    ends = np.cumsum([0, *map(len, framed)]).tolist()
    write_index(shard, zip(ends, map(len, framed), strict=False))


def one_of_each(kinds: dict[str, Any], data: Path) -> dict[str, bytes]:
    """Return a file of each kind for one set: opening a data path takes longer than reading it."""
    classes = sorted(one.name for one in (data / "train").iterdir())
    changes = {
        f"{name}_00000.JPEG": change(photo(data, name))
        for name, change in zip(classes, kinds.values(), strict=False)
    }
    assert len(changes) == len(kinds)
    return changes


ALL = {"train_images": None, "local_batch_size": 16}


@pytest.mark.slow
def test_unreadable_files_are_replaced_and_counted_by_all_paths(changed, data):
    folder = changed(one_of_each(UNREADABLE, data))
    for name in HERE:
        for form in FORMATS:
            loader = open_loader(name, folder, data_format=form, **ALL)
            shown = images_of(loader)
            assert len(shown) == 64
            assert loader.corrupt_images == len(UNREADABLE), (name, form)
            flat = [image for image, _ in shown.values() if image.std(dim=(1, 2)).max() < 1e-3]
            assert len(flat) == len(UNREADABLE)
            assert all(image.abs().max() < 0.02 for image in flat)  # the mean colour


@pytest.mark.slow
def test_unusual_files_are_shown_alike_by_all_paths(changed, data):
    folder = changed(one_of_each(UNUSUAL, data))
    for form in FORMATS:
        want = images_of(open_loader("native", folder, data_format=form, **ALL))
        for name in HERE[1:]:
            loader = open_loader(name, folder, data_format=form, **ALL)
            got = images_of(loader)
            assert loader.corrupt_images == 0, (name, form)
            assert not loader.rescued_images, (name, form)
            for number, (image, label) in want.items():
                assert got[number][1] == label
                assert (got[number][0] - image).abs().mean() < 0.02, (name, form, number)


GONE = {"folder": "train/cat/*", "tfrecord": "tfrecord/train-00001-of-*"}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", LOADERS)
def test_files_that_go_in_mid_run_end_it(name, form, changed):
    folder = changed({})
    loader = open_loader(name, folder, data_format=form, **ALL)
    for path in folder.glob(GONE[form]):
        path.unlink()
    with pytest.raises(DataError, match="gone now"):
        images_of(loader)


@pytest.mark.parametrize("name", LOADERS)
def test_labels_beyond_the_classes_are_named(name, data):
    with pytest.raises(SpecError, match="classes = 3"):
        open_loader(name, data, data_format="tfrecord", classes=3)


def test_dali_that_fails_on_a_batch_gets_it_from_pillow(data, monkeypatch):
    pytest.importorskip("nvidia.dali")
    from ddl_core.loaders import dali

    loader = open_loader("dali_cpu", data, **ALL)
    want = images_of(open_loader("dali_cpu", data, **ALL))
    plain, broken = dali._decodable, []

    def damaged(content: bytes):
        if not broken:  # what no check of ours sees, but DALI
            broken.append(content)
            _, height, width = plain(content)
            return b"\xff\xd8\xff" + b"\0" * 100, height, width
        return plain(content)

    monkeypatch.setattr(dali, "_decodable", damaged)
    got = images_of(loader)
    assert loader.corrupt_images == 0
    assert loader.rescued_images >= 16
    assert got.keys() == want.keys()
    for number, (image, _) in want.items():
        assert (got[number][0] - image).abs().mean() < 0.02
    assert torch.isfinite(torch.stack([image for image, _ in got.values()])).all()
