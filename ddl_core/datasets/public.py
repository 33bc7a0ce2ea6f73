"""Small public sets as image folders: the same door through which ImageNet goes.

What lies in a few packed files is written once as ``train/<class>/*.png`` and
``val/<class>/*.png``, so that every loader, `ddl data verify` and `ddl data convert` read it like
any other set.
"""

import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from ddl_core.datasets.making import alone, explained, require_space
from ddl_core.datasets.packed import Split, read_cifar10, read_digits, read_fashion_mnist
from ddl_core.errors import DataError

BYTES_PER_IMAGE = 4_096  # one block of the usual file systems; the images are smaller


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
        If the packed files are missing or damaged, or if `out_dir` cannot be written.
    """
    chosen = SETS[name]
    place = source or chosen.place
    if place is None or not place.is_dir():
        missing = "no folder was named" if place is None else f"{place} does not exist"
        raise DataError(f"the packed files of {name} are needed, but {missing}; {chosen.remedy}")
    folder = out_dir.absolute()
    if folder.exists():
        return 0
    try:
        train, val = chosen.read(place)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {name} from {place}: {error}; {chosen.remedy}") from error
    size = BYTES_PER_IMAGE * (len(train.labels) + len(val.labels))
    with explained(f"make {name} in {folder}", size):
        folder.parent.mkdir(parents=True, exist_ok=True)
        require_space(folder.parent, size)
        with alone(folder.with_name(f".{folder.name}.lock")):
            return 0 if folder.exists() else _write(folder, {"train": train, "val": val}, progress)


def _write(folder: Path, splits: dict[str, Split], progress: bool) -> int:
    """Fill a folder beside the final one, then rename it: a set that is there is complete."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    images = sum(len(split.labels) for split in splits.values())
    with tqdm(total=images, unit="image", disable=not progress) as bar:
        for name, split in splits.items():
            folders = [unfinished / name / class_name for class_name in split.classes]
            for one in folders:
                one.mkdir(parents=True)
            for number, (pixels, label) in enumerate(zip(split.images, split.labels, strict=True)):
                _save(pixels, folders[label] / f"{number:05d}.png")
                bar.update()
    unfinished.rename(folder)
    return images


def _save(pixels: NDArray[np.uint8], path: Path) -> None:
    Image.fromarray(pixels).save(path, compress_level=1)
