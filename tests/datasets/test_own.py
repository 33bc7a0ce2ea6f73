"""A set of one's own becomes an image folder: whole, in order, plain, and known again."""

import io
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from ddl_core.cli import main
from ddl_core.datasets.folder import list_images
from ddl_core.datasets.own import SOURCE, write_own
from ddl_core.datasets.verify import verify
from ddl_core.errors import DataError, NotInstalledError, SpecError
from tests.pictures import write_pictures

OWN = """
from pathlib import Path

import numpy as np
from PIL import Image

class Split:
    classes = ["a cat", "dog/s"]
    fingerprint = "1"

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, number):
        return self.images[number], number % 2

wide = np.full((4, 5), 0x8000, np.uint16)
clear = np.zeros((4, 5, 4), np.uint8)
colours = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
jpeg = Path(JPEG).read_bytes()

def small():
    train = Split([colours, Image.fromarray(colours), wide, clear, jpeg, colours[..., 0]])
    return {"train": train, "val": Split([colours])}

def wrong_label():
    found = small()
    found["train"].classes = ["one"]
    return found

def no_image():
    return {**small(), "val": Split([b"nothing"])}

def no_colours():
    return {**small(), "val": Split([np.ones((4, 5), np.float32)])}

def empty():
    return {**small(), "val": Split([])}

def one_split():
    return {"train": Split([colours])}

def no_protocol():
    return {"train": [1], "val": [2]}

def fails():
    return 1 / 0

class Broken(Split):
    def __getitem__(self, number):
        return self.images[number + 1], 0

def broken():
    return {**small(), "val": Broken([colours])}

number = 3
"""


@pytest.fixture(autouse=True)
def jpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    content = io.BytesIO()
    Image.new("RGB", (5, 4), "red").save(content, "JPEG")
    (tmp_path / "a.jpg").write_bytes(content.getvalue())
    (tmp_path / "ourset.py").write_text(OWN.replace("JPEG", repr(str(tmp_path / "a.jpg"))))
    monkeypatch.syspath_prepend(tmp_path)
    yield content.getvalue()
    sys.modules.pop("ourset", None)


def test_images_of_every_kind_become_plain_files_in_order(tmp_path: Path, jpeg: bytes) -> None:
    out = tmp_path / "out"
    assert write_own("ourset:small", out, progress=False) == 7
    listed = list_images(out / "train")
    assert listed.classes == ("0_a_cat", "1_dog_s")
    assert [listed.name(number) for number in range(len(listed))] == [
        "0_a_cat/00000.png", "0_a_cat/00002.png", "0_a_cat/00004.jpg",
        "1_dog_s/00001.png", "1_dog_s/00003.png", "1_dog_s/00005.png",
    ]  # fmt: skip

    def pixels(name: str) -> np.ndarray:
        return np.asarray(Image.open(out / "train" / name))

    colours = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    assert np.array_equal(pixels("0_a_cat/00000.png"), colours)
    assert np.array_equal(pixels("1_dog_s/00001.png"), colours)
    assert np.array_equal(pixels("1_dog_s/00005.png"), colours[..., 0])
    assert (pixels("0_a_cat/00002.png") == 0x80).all(), "16 bits"
    assert (pixels("1_dog_s/00003.png") == 255).all(), "transparent"
    assert (out / "train/0_a_cat/00004.jpg").read_bytes() == jpeg
    assert json.loads((out / SOURCE).read_text()) == {"train": "1", "val": "1"}


def transparent_grey() -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.full((4, 5), 10, np.uint8)).save(content, "PNG", transparency=10)
    return content.getvalue()


@pytest.mark.parametrize(
    ("image", "pixel"),
    [
        (transparent_grey(), [255] * 3),
        (np.full((4, 5, 1), 7, np.uint8), 7),
        (np.full((4, 5, 3), 0x1234, np.uint16), [0x12] * 3),
        (np.full((4, 5, 4), 0x8080, np.uint16), [0xBF] * 3),  # half of white, half of it
    ],
    ids=["transparent grey", "one channel", "16-bit colours", "transparent 16-bit colours"],
)
def test_unusual_pictures_become_plain(tmp_path: Path, image: object, pixel: object) -> None:
    ours = import_module("ourset")
    ours.unusual = lambda: {name: ours.Split([image]) for name in ("train", "val")}
    write_own("ourset:unusual", tmp_path / "out", progress=False)
    found = Image.open(tmp_path / "out/train/0_a_cat/00000.png")
    assert not found.has_transparency_data
    assert np.asarray(found)[0, 0].tolist() == pixel


def test_a_folder_that_is_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="out is there and is no image folder; remove it, or name"):
        write_own("ourset:small", tmp_path / "out", progress=False)


def test_the_same_set_is_left_as_it_is_and_another_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_own("ourset:small", out, progress=False)
    assert write_own("ourset:small", out, progress=False) == 0
    sys.modules["ourset"].Split.fingerprint = "2"
    with pytest.raises(DataError, match="holds another set, or an older state of it; name another"):
        write_own("ourset:small", out, progress=False)
    (out / SOURCE).unlink()
    with pytest.raises(DataError, match="holds another set"):
        write_own("ourset:small", out, progress=False)


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        ("ourset:wrong_label", DataError, "train image 1 has label 1, but there are 1 classes"),
        ("ourset:no_image", DataError, "val image 0: not an image of a known format"),
        ("ourset:no_colours", DataError, "val image 0: .*mode F: fractions"),
        ("ourset:empty", DataError, "split 'val' has no images"),
        ("ourset:one_split", DataError, "has to return a dict of 'train' and 'val'"),
        ("ourset:no_protocol", DataError, "train has no classes, fingerprint"),
        ("ourset:fails", DataError, "'ourset:fails' failed: ZeroDivisionError: division by zero"),
        ("ourset:broken", DataError, "val image 0: IndexError: list index out of range"),
        ("ourset:missing", SpecError, "'ourset:missing': ourset has no function 'missing'"),
        ("ourset:number", SpecError, "ourset has no function 'number'"),
        ("theirs:small", NotInstalledError, "'theirs', which cannot be imported; put the folder"),
        ("nowhere", DataError, "source 'nowhere' is no folder, and not package.module:function"),
        ("", DataError, "source '' is no folder"),
        (":small", DataError, "source ':small' is no folder"),
        ("x" * 9999, DataError, "source 'xxx.* is no folder"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_left(
    tmp_path: Path, source: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        write_own(source, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_class_folders_are_divided_by_their_names(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "both", 200, 1) / "train"
    out = tmp_path / "out"
    assert write_own(str(pictures), out, progress=False) == 200
    counts = [len(list_images(out / split)) for split in ("train", "val")]
    assert sum(counts) == 200
    assert 8 <= counts[1] <= 35
    (pictures / "class0/new.JPEG").write_bytes((pictures / "class0/0.JPEG").read_bytes())
    again = tmp_path / "again"
    assert write_own(str(pictures), again, progress=False) == 201
    held = sum(len(list_images(one / "val")) for one in (out, again))
    assert held in (2 * counts[1], 2 * counts[1] + 1), "an image more moves no other"
    with pytest.raises(DataError, match="has train/ and val/ already: use it as it is, with --dat"):
        write_own(str(tmp_path / "both"), tmp_path / "third", progress=False)


def test_each_class_of_an_undivided_set_is_in_both_splits(tmp_path: Path) -> None:
    source = tmp_path / "small"
    for label, images in enumerate([2, 3, 12, 40]):
        (source / f"c{label}").mkdir(parents=True)
        for number in range(images):
            picture = Image.new("RGB", (8, 8), (label, number, 0))
            picture.save(source / f"c{label}" / f"{number}.png")
    out = tmp_path / "out"
    assert write_own(str(source), out, progress=False) == 57
    assert verify(out, progress=False, processes=1).ok
    for split in ("train", "val"):
        assert len(list_images(out / split).present()) == 4


def test_a_class_with_one_image_cannot_be_divided(tmp_path: Path) -> None:
    source = tmp_path / "small"
    for name, images in (("many", 5), ("single", 1)):
        (source / name).mkdir(parents=True)
        for number in range(images):
            Image.new("RGB", (8, 8)).save(source / name / f"{number}.png")
    with pytest.raises(DataError, match="one image alone: single; "):
        write_own(str(source), tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_the_command_says_where_they_are(tmp_path: Path) -> None:
    command = ["data", "write", "ourset:small", str(tmp_path / "out")]
    there = tmp_path / "out"
    assert f"7 images of 2 classes are in {there}" in CliRunner().invoke(main, command).output
    again = CliRunner().invoke(main, command).output
    assert f"{there}, with 2 classes, was there already" in again
