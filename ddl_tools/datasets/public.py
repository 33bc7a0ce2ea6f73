"""Import small public sets from the few files in which their makers publish them.

`torchvision.datasets` needs torch, reads Fashion-MNIST's files only unpacked, and CIFAR-10 as
pickled Python objects.
"""

import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl_core.data.folder import class_folders
from ddl_core.errors import DataError
from ddl_core.files import require_file
from ddl_tools.datasets.output import is_filled
from ddl_tools.datasets.write import write_folder

# Xiao et al. 2017, arXiv:1708.07747, table 2. Numbered, so that sorted folders give the labels.
FASHION_MNIST_CLASSES = (
    "0_tshirt_top", "1_trouser", "2_pullover", "3_dress", "4_coat",
    "5_sandal", "6_shirt", "7_sneaker", "8_bag", "9_ankle_boot",
)  # fmt: skip
DIGITS_TRAIN = 1437  # four fifths; the later fifth was written by other people


class Packed(NamedTuple):
    """Images and labels of both splits, and the names of the classes."""

    classes: Sequence[str]
    train: Sequence[tuple[Any, Any]]
    val: Sequence[tuple[Any, Any]]


def read_fashion_mnist(folder: Path) -> Packed:
    """Read the four ``*-ubyte.gz`` files (IDX format)."""

    def split(prefix: str) -> list[tuple[Any, Any]]:
        images = _read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", 3)
        labels = _read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", 1)
        return list(zip(images, labels, strict=True))

    return Packed(FASHION_MNIST_CLASSES, split("train"), split("t10k"))


def _read_idx(path: Path, dimensions: int) -> "np.ndarray[Any, Any]":
    """Return the array of an IDX file: magic number, sizes as big-endian 32-bit, then bytes."""
    content = gzip.decompress(_read(path))
    head = np.frombuffer(content, ">u4", 1 + dimensions)
    if head[0] != 0x0800 + dimensions:
        raise ValueError(f"{path.name} is not an IDX file of {dimensions} dimensions")
    return np.frombuffer(content, np.uint8, offset=head.nbytes).reshape(head[1:].astype(int))


def read_cifar10(folder: Path) -> Packed:
    """Read CIFAR-10's binary version: rows of a label and the three planes of an image."""

    def split(*files: str) -> list[tuple[Any, Any]]:
        content = b"".join(_read(folder / file) for file in files)
        rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return list(zip(images, rows[:, 0], strict=True))

    names = _read(folder / "batches.meta.txt").decode().split()
    train = [f"data_batch_{part}.bin" for part in range(1, 6)]
    classes = [f"{number}_{name}" for number, name in enumerate(names)]
    return Packed(classes, split(*train), split("test_batch.bin"))


def _read(path: Path) -> bytes:
    require_file(path)
    return path.read_bytes()


def read_digits(_folder: Path) -> Packed:
    """Return scikit-learn's 1797 handwritten digits of 8 x 8 pixels, split in writing order."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    pairs = list(zip(images, digits.target, strict=True))
    return Packed([*map(str, digits.target_names)], pairs[:DIGITS_TRAIN], pairs[DIGITS_TRAIN:])


class PublicSet(NamedTuple):
    """How a set is read and where it usually lies."""

    read: Callable[[Path], Packed]
    place: Path | None
    remedy: str


SETS = {
    "fashion_mnist": PublicSet(
        read_fashion_mnist,
        Path("/usr/share/datasets/fashion-mnist"),
        "on Debian: apt-get install dataset-fashion-mnist; elsewhere: "
        "torchvision.datasets.FashionMNIST('DIR', download=True), then "
        "--source DIR/FashionMNIST/raw",
    ),
    "cifar10": PublicSet(
        read_cifar10,
        None,
        "name the unpacked folder of the binary version, cifar-10-batches-bin, with --source DIR",
    ),
    "digits": PublicSet(read_digits, Path(), "scikit-learn ships it: run `make env`"),
}


def import_set(name: str, out_dir: Path, source: Path | None = None) -> int:
    """Write a set of `SETS` to `out_dir`, whole or not at all; return its number of images.

    An image folder that is there stays as it is; the number is then 0. `source` is the folder of
    the packed files, by default that of their Debian package.
    """
    chosen = SETS[name]
    place = source or chosen.place
    if place is None or not place.is_dir():
        missing = "no folder was named" if place is None else f"{place} does not exist"
        raise DataError(f"the packed files of {name} are needed, but {missing}; {chosen.remedy}")
    if is_filled(out_dir):
        class_folders(out_dir.absolute() / "train")  # refuses anything else
        return 0
    try:
        packed = chosen.read(place)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {name} from {place}: {error}; {chosen.remedy}") from error
    return write_folder(out_dir, packed._asdict(), packed.classes)
