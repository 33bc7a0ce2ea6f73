"""Read small public sets from the few files in which their makers publish them."""

import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ddl_core.datasets.folder import class_folders
from ddl_core.datasets.writing import write_folder
from ddl_core.errors import DataError
from ddl_core.spec.gate import require_file

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
CIFAR10_BYTES = 1 + 3 * 32 * 32  # a label, then the three planes of an image
DIGITS_TRAIN = 1437  # four fifths; the later fifth was written by other people

MOST_BYTES = 10**9  # of an unpacked file; the largest known here has 47 MB


class Split(NamedTuple):
    """Images (n, height, width) or (n, height, width, 3), labels (n,), and class names."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    classes: tuple[str, ...]


def read_fashion_mnist(folder: Path) -> tuple[Split, Split]:
    """Return training and validation images from the four ``*-ubyte.gz`` files (IDX format).

    Raises
    ------
    OSError, EOFError, ValueError
        If a file is missing or damaged.
    """

    def split(prefix: str) -> Split:
        images = _read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", 3)
        labels = _read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", 1)
        if len(images) != len(labels):
            raise ValueError(f"{prefix}: {len(images)} images, but {len(labels)} labels")
        return _checked(Split(images, labels, FASHION_MNIST_CLASSES))

    return split("train"), split("t10k")


def _read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the array of an IDX file: magic number, sizes as big-endian 32-bit, then bytes."""
    content = _whole(path, gzip.open)
    head = np.frombuffer(content, ">u4", 1 + dimensions)
    if head[0] != 0x0800 + dimensions:
        raise ValueError(f"{path.name} is not an IDX file of {dimensions} dimensions")
    return np.frombuffer(content, np.uint8, offset=head.nbytes).reshape(head[1:].astype(int))


def read_cifar10(folder: Path) -> tuple[Split, Split]:
    """Return training and validation images from CIFAR-10's binary version.

    Raises
    ------
    OSError, ValueError
        If a file is missing or damaged.
    """
    names = _whole(folder / "batches.meta.txt", Path.open).decode().split()
    classes = tuple(f"{number}_{name}" for number, name in enumerate(names))

    def split(*files: str) -> Split:
        content = b"".join(_whole(folder / file, Path.open) for file in files)
        rows = np.frombuffer(content, np.uint8).reshape(-1, CIFAR10_BYTES)
        planes = rows[:, 1:].reshape(-1, 3, 32, 32)
        return _checked(Split(planes.transpose(0, 2, 3, 1).copy(), rows[:, 0], classes))

    return split(*(f"data_batch_{part}.bin" for part in range(1, 6))), split("test_batch.bin")


def _whole(path: Path, opened: Callable[..., Any]) -> bytes:
    """Return what a file holds, opened as it has to be; refuse one that unpacks to anything."""
    require_file(path)
    with opened(path, "rb") as file:
        content: bytes = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path.name} holds more than {MOST_BYTES:,} bytes")
    return content


def read_digits(_folder: Path) -> tuple[Split, Split]:
    """Return scikit-learn's 1797 handwritten digits of 8 x 8 pixels, split in writing order."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    classes = tuple(str(name) for name in digits.target_names)
    parts = slice(None, DIGITS_TRAIN), slice(DIGITS_TRAIN, None)
    train, val = (Split(images[part], labels[part], classes) for part in parts)
    return train, val


def _checked(split: Split) -> Split:
    if len(split.labels) and split.labels.max() >= len(split.classes):
        raise ValueError(
            f"label {split.labels.max()}, but there are only {len(split.classes)} classes"
        )
    return split


class PublicSet(NamedTuple):
    """How a set is read and where it usually lies."""

    read: Callable[[Path], tuple[Split, Split]]
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


def import_set(name: str, out_dir: Path, source: Path | None = None, progress: bool = True) -> int:
    """Write the set `name` to `out_dir`, whole or not at all; return its number of images.

    A folder that is there already is left as it is; the number is then 0.

    Parameters
    ----------
    name
        One of `SETS`.
    out_dir
        Receives ``train/<class>/*.png`` and ``val/<class>/*.png``.
    source
        Folder of the packed files; by default where their Debian package puts them.
    progress
        Show a progress bar on stderr.

    Raises
    ------
    DataError
        If the packed files are missing or damaged, if `out_dir` cannot be written, or if something
        else is there.
    """
    chosen = SETS[name]
    place = source or chosen.place
    if place is None or not place.is_dir():
        missing = "no folder was named" if place is None else f"{place} does not exist"
        raise DataError(f"the packed files of {name} are needed, but {missing}; {chosen.remedy}")
    folder = out_dir.absolute()
    if folder.exists():
        class_folders(folder / "train")  # what is there has to be a set, not anything
        return 0
    try:
        train, val = chosen.read(place)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {name} from {place}: {error}; {chosen.remedy}") from error
    return write_folder(folder, {"train": Packed(train), "val": Packed(val)}, progress, {})


class Packed:
    """A split of arrays as files."""

    def __init__(self, split: Split) -> None:
        self._split, self.classes = split, split.classes

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._split.labels)

    def file(self, number: int) -> tuple[str, bytes, int]:
        """Return suffix, content and label of an image."""
        content = io.BytesIO()
        Image.fromarray(self._split.images[number]).save(content, "PNG", compress_level=1)
        return ".png", content.getvalue(), int(self._split.labels[number])
