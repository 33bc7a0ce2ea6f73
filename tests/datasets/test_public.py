"""Public sets become image folders: the same pixels and labels, whole or not at all."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from ddl_core.datasets import PUBLIC_SETS
from ddl_core.datasets.folder import list_images
from ddl_core.datasets.public import FASHION_MNIST_CLASSES, SETS, Packed, import_set
from ddl_core.errors import DataError

RNG = np.random.default_rng(0)
DEBIAN = SETS["fashion_mnist"].place


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


def test_the_command_line_knows_every_set() -> None:
    assert tuple(SETS) == PUBLIC_SETS


def test_digits_keep_pixels_labels_and_split(tmp_path: Path) -> None:
    digits = load_digits()
    assert import_set("digits", tmp_path / "digits", progress=False) == len(digits.target)
    for split, part in (("train", slice(None, 1437)), ("val", slice(1437, None))):
        listed = list_images(tmp_path / "digits" / split)
        assert listed.classes == tuple("0123456789")
        first = {label: index for index, label in reversed(list(enumerate(listed.labels)))}
        for label, index in first.items():
            place = np.flatnonzero(digits.target[part] == label)[0]
            want = np.round(digits.images[part][place] * 255 / 16)
            assert np.array_equal(np.asarray(Image.open(listed.path(index))), want)
        assert np.array_equal(np.bincount(listed.labels), np.bincount(digits.target[part]))


def test_fashion_mnist_is_read_from_its_files(idx: Path, tmp_path: Path) -> None:
    out = tmp_path / "fashion"
    assert import_set("fashion_mnist", out, idx, progress=False) == 60
    listed = list_images(out / "train")
    assert listed.classes == FASHION_MNIST_CLASSES
    assert np.bincount(listed.labels).tolist() == [4] * 10
    assert import_set("fashion_mnist", out, idx, progress=False) == 0  # there already


def test_cifar10_is_read_from_its_binary_version(tmp_path: Path) -> None:
    packed = tmp_path / "cifar-10-batches-bin"
    packed.mkdir()
    (packed / "batches.meta.txt").write_text("plane\ncar\n\n")
    planes = RNG.integers(0, 256, (12, 3, 32, 32), np.uint8)
    rows = [bytes([number % 2]) + planes[number].tobytes() for number in range(12)]
    names = [*(f"data_batch_{part}.bin" for part in range(1, 6)), "test_batch.bin"]
    for part, name in enumerate(names):
        (packed / name).write_bytes(b"".join(rows[2 * part : 2 * part + 2]))
    assert import_set("cifar10", tmp_path / "out", packed, progress=False) == 12
    third = np.asarray(Image.open(tmp_path / "out/train/1_car/00003.png"))
    assert np.array_equal(third, planes[3].transpose(1, 2, 0))


def test_missing_files_are_named_with_both_ways_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not exist.*apt-get.*torchvision"):
        import_set("fashion_mnist", tmp_path / "out", tmp_path / "nothing")
    with pytest.raises(DataError, match=r"no folder was named.*--source"):
        import_set("cifar10", tmp_path / "out")


@pytest.mark.parametrize(
    "fault", ["cut short", "not gzip", "other magic", "labels missing", "label"]
)
def test_damaged_files_leave_nothing_behind(idx: Path, tmp_path: Path, fault: str) -> None:
    images, labels = (idx / f"train-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    if fault == "cut short":
        images.write_bytes(images.read_bytes()[:-200])
    elif fault == "not gzip":
        images.write_bytes(b"no gzip")
    elif fault == "other magic":
        labels.write_bytes(images.read_bytes())
    elif fault == "labels missing":
        write_idx(labels, np.zeros(39, np.uint8))
    else:
        write_idx(labels, np.full(40, 10, np.uint8))
    with pytest.raises(DataError, match="cannot read fashion_mnist"):
        import_set("fashion_mnist", tmp_path / "out", idx, progress=False)
    assert not (tmp_path / "out").exists()


def test_an_interrupted_import_is_made_again(idx: Path, tmp_path: Path, monkeypatch) -> None:
    file = Packed.file

    def failing(split: Packed, number: int) -> tuple[str, bytes, int]:
        if number == 30:
            raise OSError(28, os.strerror(28))
        return file(split, number)

    monkeypatch.setattr(Packed, "file", failing)
    with pytest.raises(DataError, match="free some space"):
        import_set("fashion_mnist", tmp_path / "out", idx, progress=False)
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    assert import_set("fashion_mnist", tmp_path / "out", idx, progress=False) == 60


@pytest.mark.skipif(DEBIAN is None or not DEBIAN.is_dir(), reason="needs dataset-fashion-mnist")
def test_debians_files_are_those_of_the_authors() -> None:
    train, val = SETS["fashion_mnist"].read(DEBIAN)
    assert (train.images.shape, val.images.shape) == ((60_000, 28, 28), (10_000, 28, 28))
    assert np.bincount(train.labels).tolist() == [6000] * 10
    assert round(float(train.images.mean() / 255), 4) == 0.2860  # the known mean of the pixels
