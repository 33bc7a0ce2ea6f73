"""Import small public sets from the few files in which their makers publish them.

`torchvision.datasets` reads them too, but takes torch to be there and CIFAR-10 in pickled form.
"""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddl_core.datasets.folder import class_folders
from ddl_core.datasets.output import is_filled
from ddl_core.datasets.write import write_folder
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


class Arrays:
    """A split of images (n, height, width) or (n, height, width, 3), labels (n,), class names."""

    def __init__(
        self, images: NDArray[np.uint8], labels: NDArray[np.uint8], classes: tuple[str, ...]
    ) -> None:
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images, but {len(labels)} labels")
        self.images, self.labels, self.classes = images, labels, classes

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[NDArray[np.uint8], int]:
        """Return an image and its label."""
        return self.images[number], int(self.labels[number])


Splits = dict[str, Arrays]


def read_fashion_mnist(folder: Path) -> Splits:
    """Read the four ``*-ubyte.gz`` files (IDX format)."""

    def split(prefix: str) -> Arrays:
        images = _read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", 3)
        labels = _read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", 1)
        return Arrays(images, labels, FASHION_MNIST_CLASSES)

    return {"train": split("train"), "val": split("t10k")}


def _read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the array of an IDX file: magic number, sizes as big-endian 32-bit, then bytes."""
    require_file(path)
    with gzip.open(path) as file:
        content = file.read()
    head = np.frombuffer(content, ">u4", 1 + dimensions)
    if head[0] != 0x0800 + dimensions:
        raise ValueError(f"{path.name} is not an IDX file of {dimensions} dimensions")
    return np.frombuffer(content, np.uint8, offset=head.nbytes).reshape(head[1:].astype(int))


def read_cifar10(folder: Path) -> Splits:
    """Read CIFAR-10's binary version."""
    names = _read(folder / "batches.meta.txt").decode().split()
    classes = tuple(f"{number}_{name}" for number, name in enumerate(names))

    def split(*files: str) -> Arrays:
        content = b"".join(_read(folder / file) for file in files)
        rows = np.frombuffer(content, np.uint8).reshape(-1, CIFAR10_BYTES)
        planes = rows[:, 1:].reshape(-1, 3, 32, 32)
        return Arrays(planes.transpose(0, 2, 3, 1).copy(), rows[:, 0], classes)

    train = [f"data_batch_{part}.bin" for part in range(1, 6)]
    return {"train": split(*train), "val": split("test_batch.bin")}


def _read(path: Path) -> bytes:
    require_file(path)
    return path.read_bytes()


def read_digits(_folder: Path) -> Splits:
    """Return scikit-learn's 1797 handwritten digits of 8 x 8 pixels, split in writing order."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    classes = tuple(str(name) for name in digits.target_names)
    parts = {"train": slice(None, DIGITS_TRAIN), "val": slice(DIGITS_TRAIN, None)}
    return {name: Arrays(images[part], labels[part], classes) for name, part in parts.items()}


class PublicSet(NamedTuple):
    """How a set is read and where it usually lies."""

    read: Callable[[Path], Splits]
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

    An image folder that is there already is left as it is; the number is then 0.

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
    if is_filled(out_dir):
        class_folders(out_dir.absolute() / "train")  # refuses anything else
        return 0
    try:
        splits = chosen.read(place)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {name} from {place}: {error}; {chosen.remedy}") from error
    return write_folder(out_dir, splits, splits["train"].classes, progress)
