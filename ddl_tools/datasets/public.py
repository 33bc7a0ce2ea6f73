"""Import small public sets from the few files in which their makers publish them.

`torchvision.datasets` needs torch, reads Fashion-MNIST's files only unpacked, and CIFAR-10 as
pickled Python objects.
"""

import io
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl_core.data.folder import class_folders
from ddl_core.errors import DataError
from ddl_core.files import read_plain
from ddl_core.origin import INSTALL
from ddl_tools.datasets.output import is_filled
from ddl_tools.datasets.write import numbered, write_folder

# SHA-256 of the published files; of those that Debian packs again, of their content.
FASHION_MNIST = {
    f"{part}-ubyte.gz": digest
    for part, digest in {
        "train-images-idx3": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }.items()
}
CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR10 = {CIFAR10_ARCHIVE: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"}
MOST_BYTES = 2**28  # of a file, packed or not; the largest one has 170 MB
# Xiao et al. 2017, arXiv:1708.07747, table 2. Numbered, so that sorted folders give the labels.
FASHION_MNIST_CLASSES = (
    "0_tshirt_top",
    "1_trouser",
    "2_pullover",
    "3_dress",
    "4_coat",
    "5_sandal",
    "6_shirt",
    "7_sneaker",
    "8_bag",
    "9_ankle_boot",
)
DIGITS_TRAIN = 1437  # four fifths; the later fifth was written by other people


class Packed(NamedTuple):
    """Images and labels of both splits, and the names of the classes."""

    classes: Sequence[str]
    train: Sequence[tuple[Any, Any]]
    val: Sequence[tuple[Any, Any]]


Files = Mapping[str, bytes]


def read_fashion_mnist(files: Files) -> Packed:
    """Read the four files in IDX format."""

    def split(prefix: str) -> list[tuple[Any, Any]]:
        images = _read_idx(files, f"{prefix}-images-idx3-ubyte.gz", 3)
        labels = _read_idx(files, f"{prefix}-labels-idx1-ubyte.gz", 1)
        return list(zip(images, labels, strict=True))

    return Packed(FASHION_MNIST_CLASSES, split("train"), split("t10k"))


def _read_idx(files: Files, name: str, dimensions: int) -> "np.ndarray[Any, Any]":
    """Return the array of an IDX file: magic number, sizes as big-endian 32-bit, then bytes."""
    content = files[name]
    head = np.frombuffer(content, ">u4", 1 + dimensions)
    if head[0] != 0x0800 + dimensions:
        raise ValueError(f"{name} is not an IDX file of {dimensions} dimensions")
    return np.frombuffer(content, np.uint8, offset=head.nbytes).reshape(head[1:].astype(int))


def read_cifar10(files: Files) -> Packed:
    """Read CIFAR-10's binary version: rows of a label and the three planes of an image."""
    with tarfile.open(fileobj=io.BytesIO(files[CIFAR10_ARCHIVE])) as archive:
        parts = {
            Path(one.name).name: found.read()
            for one in archive
            if (found := archive.extractfile(one)) is not None
        }

    def split(*names: str) -> list[tuple[Any, Any]]:
        content = b"".join(parts[name] for name in names)
        rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return list(zip(images, rows[:, 0], strict=True))

    train = [f"data_batch_{part}.bin" for part in range(1, 6)]
    classes = numbered(parts["batches.meta.txt"].decode().split())
    return Packed(classes, split(*train), split("test_batch.bin"))


def _content(path: Path, digest: str) -> bytes:
    """Return what a published file contains; `ValueError` if it is another file."""
    content = read_plain(path, MOST_BYTES)
    if path.name.endswith("-ubyte.gz"):
        unpacker = zlib.decompressobj(wbits=31)  # of gzip
        content = unpacker.decompress(content, MOST_BYTES)
    if sha256(content).hexdigest() != digest:
        raise ValueError(f"{path.name} is not the published file: its SHA-256 differs")
    return content


def read_digits(_files: Files) -> Packed:
    """Return scikit-learn's 1797 handwritten digits of 8 x 8 pixels, split in writing order."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    pairs = list(zip(images, digits.target, strict=True))
    return Packed([*map(str, digits.target_names)], pairs[:DIGITS_TRAIN], pairs[DIGITS_TRAIN:])


class PublicSet(NamedTuple):
    """How a set is read, its files with their SHA-256, and where they usually lie."""

    read: Callable[[Files], Packed]
    files: Mapping[str, str]
    place: Path | None
    remedy: str


SETS = {
    "fashion_mnist": PublicSet(
        read_fashion_mnist,
        FASHION_MNIST,
        Path("/usr/share/datasets/fashion-mnist"),
        "on Debian: apt-get install dataset-fashion-mnist; elsewhere: "
        "torchvision.datasets.FashionMNIST('DIR', download=True), then "
        "--source DIR/FashionMNIST/raw",
    ),
    "cifar10": PublicSet(
        read_cifar10,
        CIFAR10,
        None,
        f"name the folder of the binary version's archive, {CIFAR10_ARCHIVE}, with --source DIR",
    ),
    "digits": PublicSet(read_digits, {}, Path(), f"scikit-learn ships it: run `{INSTALL}`"),
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
        files = {file: _content(place / file, digest) for file, digest in chosen.files.items()}
        packed = chosen.read(files)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {name} from {place}: {error}; {chosen.remedy}") from error
    return write_folder(out_dir, packed._asdict(), packed.classes)
