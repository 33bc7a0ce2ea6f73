"""A set of your own and a public set become an image folder: whole, in order, RGB or grey."""

import gzip
import io
import sys
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from ddl_core.data.folder import list_images
from ddl_core.errors import DataError, NotInstalledError
from ddl_tools.cli import main
from ddl_tools.datasets import PUBLIC_SETS
from ddl_tools.datasets.public import FASHION_MNIST_CLASSES, SETS, import_set
from ddl_tools.datasets.write import write_folder, write_function


class Split(list):
    """Images, labelled in turn."""

    def __init__(
        self, images: list[Any], labels: int = 2, classes: tuple[str, ...] = ("a cat", "dog/s")
    ) -> None:
        super().__init__((image, number % labels) for number, image in enumerate(images))
        self.classes = classes


def file(image: Image.Image, form: str, **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, form, **options)
    return content.getvalue()


COLOURS = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
JPEG = file(Image.new("RGB", (5, 4), "red"), "JPEG")
TRAIN = Split([COLOURS, Image.fromarray(COLOURS), JPEG, COLOURS[..., 0]])


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Name a function that returns these splits."""

    def named(train: Any = TRAIN, val: Any = TRAIN, **others: Any) -> str:
        splits = {"train": train, "val": val, **others}
        monkeypatch.setitem(sys.modules, "ourset", SimpleNamespace(ours=splits.copy))
        return "ourset:ours"

    return named


def test_images_of_every_kind_become_files_in_order(tmp_path: Path, returned) -> None:
    command = ["data", "write", returned(val=Split([COLOURS])), str(tmp_path / "out")]
    assert "/out has 5 images of 2 classes" in CliRunner().invoke(main, command).output
    root = tmp_path / "out" / "train"
    listed = list_images(root)
    assert listed.classes == ("0_a_cat", "1_dog_s")
    assert [listed.name(number) for number in range(len(listed))] == [
        "0_a_cat/00000.png", "0_a_cat/00002.jpg", "1_dog_s/00001.png", "1_dog_s/00003.png",
    ]  # fmt: skip
    for name in ("0_a_cat/00000.png", "1_dog_s/00001.png"):
        assert np.array_equal(np.asarray(Image.open(root / name)), COLOURS)
    assert np.array_equal(np.asarray(Image.open(root / "1_dog_s/00003.png")), COLOURS[..., 0])
    assert (root / "0_a_cat/00002.jpg").read_bytes() == JPEG
    again = CliRunner().invoke(main, command)
    assert f"{tmp_path / 'out'} is there already; remove it" in again.output
    assert again.exit_code


GREY = Image.fromarray(np.full((4, 5), 10, np.uint8))


@pytest.mark.parametrize(
    ("image", "pixel"),
    [
        (file(GREY, "PNG", transparency=10), [255] * 3),
        (np.zeros((4, 5, 4), np.uint8), [255] * 3),
        (np.full((4, 5, 1), 7, np.uint8), 7),
        (np.full((4, 5), 0x8000, np.uint16), [0x80] * 3),
        (np.full((4, 5, 3), 0x1234, np.uint16), [0x12] * 3),
        (np.full((4, 5, 4), 0x8080, np.uint16), [0xBF] * 3),  # half of white, half of it
    ],
    ids=["clear grey", "clear", "one channel", "16 bits", "16-bit colours", "clear 16-bit colours"],
)
def test_unusual_images_become_rgb_or_grey(tmp_path: Path, returned, image, pixel) -> None:
    split = Split([image])
    write_function(returned(split, split), tmp_path / "out")
    found = Image.open(tmp_path / "out/train/0_a_cat/00000.png")
    assert not found.has_transparency_data
    assert np.asarray(found)[0, 0].tolist() == pixel


@pytest.mark.parametrize(
    ("splits", "match"),
    [
        ({"train": Split([COLOURS] * 3, 3)}, "train image 2 has label 2, but there are 2 classes"),
        ({"val": Split([COLOURS], 1, ("one",))}, "val has other classes than train"),
        ({"train": Split([COLOURS], 1)}, "val image 1 is of class 1_dog_s, .* training has no"),
        ({"val": Split([b"nothing"])}, "val image 0: not an image of a known format"),
        ({"val": Split([np.ones((4, 5), np.float32)])}, "val image 0: .*mode F: fractions"),
        ({"val": Split([])}, "split 'val' has no images"),
        ({"test": TRAIN}, "has to return a dict of 'train' and 'val'"),
        ({"train": [1]}, "train needs classes"),
    ],
)
def test_errors_are_named_and_nothing_is_left(tmp_path: Path, returned, splits, match) -> None:
    with pytest.raises(DataError, match=match):
        write_function(returned(**splits), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} <= {".out.lock"}


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        ("math:sqrt", DataError, "'math:sqrt' failed: TypeError"),
        ("math:nothing", DataError, "'math:nothing' failed: .*no attribute"),
        ("theirs:small", NotInstalledError, "'theirs', which cannot be imported; .* PYTHONPATH"),
        ("nowhere", DataError, "source 'nowhere' is not package.module:function"),
    ],
)
def test_a_function_that_cannot_be_called_is_named(tmp_path: Path, source, error, match) -> None:
    with pytest.raises(error, match=match):
        write_function(source, tmp_path / "out")


RNG = np.random.default_rng(0)


@contextmanager
def published(name: str, folder: Path) -> Iterator[None]:
    """Let the files in `folder` be those that the makers of a set published."""
    digests = {}
    for file in SETS[name].files:
        content = (folder / file).read_bytes()
        with suppress(OSError, EOFError, zlib.error):
            content = gzip.decompress(content) if file.endswith("ubyte.gz") else content
        digests[file] = sha256(content).hexdigest()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SETS, name, SETS[name]._replace(files=digests))
        yield


def write_idx(path: Path, array: np.ndarray) -> None:
    head = np.array([0x0800 + array.ndim, *array.shape], ">u4")
    path.write_bytes(gzip.compress(head.tobytes() + array.tobytes()))


@pytest.fixture
def idx(tmp_path: Path) -> Path:
    """Files in Fashion-MNIST's format with 40 training and 20 validation images."""
    folder = tmp_path / "packed"
    folder.mkdir()
    for prefix, images in (("train", 40), ("t10k", 20)):
        pixels = RNG.integers(0, 256, (images, 28, 28), np.uint8)
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", pixels)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", np.arange(images, dtype=np.uint8) % 10)
    return folder


def test_digits_keep_pixels_labels_and_split(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits  # takes a second, which collecting need not spend

    digits = load_digits()
    assert import_set("digits", tmp_path / "digits") == len(digits.target)
    for split, part in (("train", slice(None, 1437)), ("val", slice(1437, None))):
        listed = list_images(tmp_path / "digits" / split)
        assert listed.classes == tuple("0123456789")
        for label in range(10):
            place = np.flatnonzero(digits.target[part] == label)[0]
            want = np.round(digits.images[part][place] * 255 / 16)
            first = int(np.flatnonzero(listed.labels == label)[0])
            assert np.array_equal(np.asarray(Image.open(listed.path(first))), want)
        assert np.array_equal(np.bincount(listed.labels), np.bincount(digits.target[part]))


def test_fashion_mnist_is_read_from_its_files(idx: Path, tmp_path: Path) -> None:
    out = tmp_path / "fashion"
    with published("fashion_mnist", idx):
        assert import_set("fashion_mnist", out, idx) == 60
    listed = list_images(out / "train")
    assert listed.classes == FASHION_MNIST_CLASSES
    assert np.bincount(listed.labels).tolist() == [4] * 10
    assert import_set("fashion_mnist", out, idx) == 0  # there already


def cifar(folder: Path, names: str) -> "np.ndarray[Any, Any]":
    """Write an archive of CIFAR-10's form with 12 images; return their planes."""
    planes = RNG.integers(0, 256, (12, 3, 32, 32), np.uint8)
    rows = [bytes([number % 2]) + planes[number].tobytes() for number in range(12)]
    files = [*(f"data_batch_{part}.bin" for part in range(1, 6)), "test_batch.bin"]
    parts = {name: b"".join(rows[2 * part : 2 * part + 2]) for part, name in enumerate(files)}
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, content in {**parts, "batches.meta.txt": names.encode()}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return planes


def test_cifar10_is_read_from_its_binary_version(tmp_path: Path) -> None:
    planes = cifar(tmp_path, "plane\ncar\n\n")
    with published("cifar10", tmp_path):
        assert import_set("cifar10", tmp_path / "out", tmp_path) == 12
    third = np.asarray(Image.open(tmp_path / "out/train/1_car/00003.png"))
    assert np.array_equal(third, planes[3].transpose(1, 2, 0))


def test_names_of_classes_cannot_leave_the_folder(tmp_path: Path) -> None:
    cifar(tmp_path, "a/../../../outside\n../b\n")
    with published("cifar10", tmp_path):
        import_set("cifar10", tmp_path / "in" / "out", tmp_path)
    classes = [path.name for path in (tmp_path / "in/out/train").iterdir()]
    assert sorted(classes) == ["0_a_.._.._.._outside", "1_.._b"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["in"]
    for name in ("../x", "/x", "..", "", "a/b", "a\0b"):
        with pytest.raises(DataError, match="cannot name the folder of a class"):
            write_folder(tmp_path / "other", {"train": [], "val": []}, [name])


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_other_files_than_the_published_ones_are_refused(name, idx: Path, tmp_path: Path) -> None:
    cifar(idx, "a\nb\n")
    with pytest.raises(DataError, match="is not the published file"):
        import_set(name, tmp_path / "out", idx)
    assert not (tmp_path / "out").exists()


def test_a_small_file_that_unpacks_to_gigabytes_is_refused(idx: Path, tmp_path: Path) -> None:
    bomb = zlib.compressobj(wbits=31)
    with (idx / "train-images-idx3-ubyte.gz").open("wb") as file:
        for _ in range(5 * 2**8):
            file.write(bomb.compress(bytes(2**20)))
        file.write(bomb.flush())
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="is not the published file"):
            import_set("fashion_mnist", tmp_path / "out", idx)
        assert tracemalloc.get_traced_memory()[1] < 2**30
    finally:
        tracemalloc.stop()


def test_missing_files_are_named_with_both_ways_to_get_them(tmp_path: Path) -> None:
    assert tuple(SETS) == PUBLIC_SETS
    with pytest.raises(DataError, match=r"does not exist.*apt-get.*torchvision"):
        import_set("fashion_mnist", tmp_path / "out", tmp_path / "nothing")
    with pytest.raises(DataError, match=r"no folder was named.*--source"):
        import_set("cifar10", tmp_path / "out")


@pytest.mark.parametrize("fault", ["cut short", "not gzip", "other magic", "label"])
def test_damaged_files_leave_nothing_behind(idx: Path, tmp_path: Path, fault: str) -> None:
    images, labels = (idx / f"train-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    if fault == "cut short":
        images.write_bytes(images.read_bytes()[:-200])
    elif fault == "not gzip":
        images.write_bytes(b"no gzip")
    elif fault == "other magic":
        labels.write_bytes(images.read_bytes())
    else:
        write_idx(labels, np.full(40, 10, np.uint8))
    with (
        published("fashion_mnist", idx),
        pytest.raises(DataError, match=r"cannot read fashion_mnist|label 10, but there"),
    ):
        import_set("fashion_mnist", tmp_path / "out", idx)
    assert not (tmp_path / "out").exists()
