"""Damaged and unusual files: every data path decides alike, counts alike, and never hangs."""

import io
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ddl_core.data.tfrecord import ENCODED, LABEL, Example, shards_in
from ddl_core.errors import DataError, SpecError
from ddl_tools.datasets.records import FILENAME, example, frame, read_records, write_index
from tests.core.loaders.paths import (
    ALIKE,
    DALI,
    FORMATS,
    LOADERS,
    dali_is_there,
    images_of,
    open_loader,
    with_dali,
)


def photo(data: Path, name: str = "cat") -> bytes:
    return (data / "train" / name / f"{name}_00000.JPEG").read_bytes()


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def as_mode(content: bytes, mode: str, kind: str = "JPEG") -> bytes:
    return saved(Image.open(io.BytesIO(content)).convert(mode), kind)


def wide(content: bytes) -> bytes:
    """Return the photograph in grey of 16 bits."""
    grey = np.asarray(Image.open(io.BytesIO(content)).convert("L")).astype(np.uint16)
    return saved(Image.fromarray(grey * 257), "PNG")


def turned(content: bytes) -> bytes:
    """Return the photograph with a note that it lies on its side, which loaders ignore."""
    image = Image.open(io.BytesIO(content))
    exif = image.getexif()
    exif[0x0112] = 6
    return saved(image, "JPEG", exif=exif, quality=95)


def ycck(content: bytes) -> bytes:
    """Return the photograph in the colours of printing presses that Adobe's programs write."""
    changed = bytearray(as_mode(content, "CMYK"))
    start = changed.index(b"Adobe")
    assert changed[start + 11] in (0, 2)  # whether the three colours are YCC
    changed[start + 11] = 2
    return bytes(changed)


UNREADABLE = {
    "truncated": lambda content: content[: len(content) // 2],
    "zero bytes": lambda content: b"",
    "no image": lambda content: b"no image at all" * 100,
    "AVIF without its end": lambda content: as_mode(content, "RGB", "AVIF")[:-100] + bytes(100),
    "too large": lambda content: saved(Image.new("1", (20_000, 20_000)), "PNG"),
    "too thin": lambda content: saved(Image.new("1", (1, 2_000_000)), "PNG"),
    "too thin JPEG": lambda content: saved(Image.new("L", (50_000, 400)), "JPEG"),
}
UNUSUAL = {
    "grey": lambda content: as_mode(content, "L"),
    "CMYK": lambda content: as_mode(content, "CMYK"),
    "PNG": lambda content: as_mode(content, "RGB", "PNG"),
    "palette PNG": lambda content: as_mode(content, "P", "PNG"),
    "PNG with alpha": lambda content: as_mode(content, "RGBA", "PNG"),
    "progressive": lambda content: saved(
        Image.open(io.BytesIO(content)), "JPEG", progressive=True, quality=95
    ),
    "YCCK": lambda content: ycck(content),
    "WebP": lambda content: as_mode(content, "RGB", "WEBP"),
    "EXIF orientation": lambda content: turned(content),
    "data behind the end": lambda content: content + b"\0" * 10_000,
    "data before the end": lambda content: content[:-2] + b"\0" * 10 + content[-2:],
    "as thin as is read": lambda content: saved(Image.new("RGB", (3000, 30), "teal"), "JPEG"),
}


@pytest.fixture
def changed(data, tmp_path):
    """Return a function that makes a set with other contents by file name; both formats."""

    def change(contents: dict[str, bytes], split: str = "train") -> Path:
        folder = Path(shutil.copytree(data, tmp_path / f"changed{len(list(tmp_path.iterdir()))}"))
        for name, content in contents.items():
            (folder / split / name.rpartition("_")[0] / name).write_bytes(content)
        for name in shards_in(folder / "tfrecord", split):
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
def test_unreadable_files_are_replaced_and_counted(changed, data):
    folder = changed(one_of_each(UNREADABLE, data))
    for name in ALIKE:
        for form in FORMATS:
            loader = open_loader(name, folder, data_format=form, **ALL)
            shown = images_of(loader)
            assert len(shown) == 64
            assert loader.corrupt_images == len(UNREADABLE), (name, form)
            flat = [image for image, _ in shown.values() if image.std(dim=(1, 2)).max() < 1e-3]
            assert len(flat) == len(UNREADABLE)
            assert all(image.abs().max() < 0.02 for image in flat)  # the mean colour


DAMAGED = {
    "truncated": r"truncated",
    "zero bytes": r"not an image of a known format",
    "no image": r"not an image of a known format",
    "GIF": r"but Pillow can",
    "too large": r"pixels",
    "too thin": r"pixels: one side",
    "too thin JPEG": r"pixels: one side",
}


@with_dali
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("split", ["train", "eval"])
@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_ends_dali_which_names_it(kind, split, form, changed, data):
    make = {**UNREADABLE, "GIF": lambda content: as_mode(content, "P", "GIF")}[kind]
    part = {"train": "train", "eval": "val"}[split]
    folder = changed({"cat_00000.JPEG": make(photo(data))}, part)
    fields = {"data_format": form, "eval_images": None, **ALL}
    loader = open_loader("dali_cpu", folder, split, loader_prefetch=2, **fields)
    named = {"folder": "cat/cat_00000.JPEG", "tfrecord": r"-of-\d+ record \d+"}[form]
    began = time.monotonic()
    with pytest.raises(DataError, match=rf"{named}: .*{DAMAGED[kind]}.*ddl data verify"):
        images_of(loader)
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_unusual_files_are_shown_alike_by_all_paths(changed, data):
    folder = changed(one_of_each(UNUSUAL, data), "val")
    fields = {"eval_images": None, **ALL}
    for form in FORMATS:
        want = images_of(open_loader("native", folder, "eval", data_format=form, **fields))
        for name in [*ALIKE[1:], *["dali_cpu"] * dali_is_there()]:
            loader = open_loader(name, folder, "eval", data_format=form, **fields)
            got = images_of(loader)
            assert loader.corrupt_images == 0, (name, form)
            assert list(got) == list(want)
            for number, (image, label) in want.items():
                assert got[number][1] == label
                assert (got[number][0] - image).abs().mean() < 0.02, (name, form, number)


@pytest.mark.slow
def test_unusual_files_pass_every_path_in_training(changed, data):
    odd = {**UNUSUAL, "16 bits": lambda content: wide(content)}
    folder = changed(one_of_each(odd, data))
    for name in [*ALIKE, *["dali_cpu"] * dali_is_there()]:
        for form in FORMATS:
            loader = open_loader(name, folder, data_format=form, **ALL)
            shown = images_of(loader)
            assert (len(shown), loader.corrupt_images) == (64, 0), (name, form)
            assert all(torch.isfinite(image).all() for image, _ in shown.values())


@with_dali
def test_dali_reads_names_that_are_not_utf_8(changed):
    folder = changed({})
    one = folder / "train" / "cat" / "cat_00000.JPEG"
    one.rename(os.fsdecode(os.fsencode(one.parent) + b"/l\xe4tin.JPEG"))
    assert len(images_of(open_loader("dali_cpu", folder, **ALL))) == 64


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("label", [0, None])
def test_labels_from_0_or_missing_are_named(label, name, changed, data):
    folder = changed({})
    for shard in shards_in(folder / "tfrecord", "train"):
        path, framed = folder / "tfrecord" / shard, []
        for record in read_records(path):
            found = Example(record.data)
            features = {ENCODED: found.first(ENCODED), FILENAME: found.first(FILENAME)}
            features |= {} if label is None else {LABEL: found.label()}
            framed.append(frame(example(features)))
        path.write_bytes(b"".join(framed))
        ends = np.cumsum([0, *map(len, framed)]).tolist()
        write_index(path, zip(ends, map(len, framed), strict=False))
    words = {0: "labels count from 1", None: f"no feature {LABEL}"}[label]
    with pytest.raises(DataError, match=words):
        images_of(open_loader(name, folder, data_format="tfrecord", **ALL))


GONE = {"folder": "train/cat/*", "tfrecord": "tfrecord/train-00001-of-*"}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["native", "turbo", DALI])  # `memory` has read them all
def test_files_that_go_in_mid_run_end_it(name, form, changed):
    folder = changed({})
    loader = open_loader(name, folder, data_format=form, **ALL)
    for path in folder.glob(GONE[form]):
        path.unlink()
    with pytest.raises(DataError, match=r"gone now|train-00001-of-"):
        images_of(loader)


@pytest.mark.parametrize("name", LOADERS)
def test_labels_beyond_the_classes_are_named(name, data):
    with pytest.raises(SpecError, match="classes = 3"):
        open_loader(name, data, data_format="tfrecord", classes=3)
