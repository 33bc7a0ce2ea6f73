"""List an image folder, in the order of torchvision's ImageFolder and in little memory."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ddl_core.data import dataset
from ddl_core.data.dataset import Arrays, EncodedDataset, once_per_node
from ddl_core.errors import DataError
from ddl_core.files import require_file, some

# Those of torchvision.datasets.ImageFolder.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

MAX_LEVELS = 20  # of folders in a class folder; more are links that lead in a circle


class ImageList(EncodedDataset):
    """Paths and labels of the images of one split.

    All names lie in one `bytes` object and their positions in one array: about 40 MB for the 1.28
    million images of ImageNet. A list of (path, label) tuples takes 300 MB, and a forked loader
    process copies it page by page as it counts references.

    """

    def __init__(
        self, root: Path, classes: Sequence[str], names: bytes, labels: NDArray[np.int32]
    ) -> None:
        """Take the file names relative to their class folders, each ended by a zero byte."""
        self.root = root
        self.classes = tuple(classes)
        self.labels = labels
        self._names = names
        self._ends = np.flatnonzero(np.frombuffer(names, dtype=np.uint8) == 0)

    @classmethod
    def pack(cls, root: Path, classes: Sequence[str], names: Iterable[Sequence[str]]) -> Self:
        """Pack `names`: for each class, its file names in order."""
        packed, counts = [], []
        for files in names:
            packed.append(b"".join(os.fsencode(name) + b"\0" for name in files))
            counts.append(len(files))
        labels = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return cls(root, classes, b"".join(packed), labels)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[str, int]:
        """Return path and label."""
        return self.path(index), self.label(index)

    def name(self, index: int) -> str:
        """Return an image's path relative to the split's folder."""
        start = self._ends[index - 1] + 1 if index else 0
        file = os.fsdecode(self._names[start : self._ends[index]])
        return f"{self.classes[self.labels[index]]}/{file}"

    def path(self, index: int) -> str:
        """Return an image's path, ``0 <= index < len``."""
        return f"{self.root}/{self.name(index)}"

    def label(self, index: int) -> int:
        """Return an image's class as an index into `classes`."""
        return int(self.labels[index])

    def read(self, index: int) -> tuple[bytes, int]:
        """Return the encoded image and its label; see `EncodedDataset`."""
        path = self.path(index)
        try:
            return Path(path).read_bytes(), self.label(index)
        except FileNotFoundError as error:
            raise DataError(f"{path} was there when the run began and is gone now") from error
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error

    def present(self) -> list[str]:
        """Return the classes that have images."""
        return [self.classes[label] for label in np.unique(self.labels)]

    def fingerprint(self) -> str:
        """Return the SHA-256 over class names, file names and labels."""
        digest = hashlib.sha256(os.fsencode("\0".join((*self.classes, "", ""))))
        digest.update(self._names)
        digest.update(self.labels.astype("<i4").tobytes())
        return digest.hexdigest()


def list_images(split_dir: str | Path, classes: Sequence[str] | None = None) -> ImageList:
    """List the images below ``split_dir/<class>/``: classes sorted, files sorted in each.

    `classes` are the sorted classes that the labels count. Give those of the training split when
    listing the validation split: by default they are the folders found, and one that is absent in
    validation would shift all later labels.
    """
    root = Path(split_dir).absolute()
    found = class_folders(root)
    unknown = sorted(set(found) - set(classes or found))
    if unknown:
        raise DataError(f"{root} has class folders that training does not know: {some(unknown)}")

    def look() -> tuple[Arrays, bool]:
        walks = [_walked(root / name) for name in found]
        images = ImageList.pack(root, found, map(_names, walks))
        # A change in a folder inside a class folder does not change the class folder.
        nested = any(len(walk) > 1 for walk in walks)
        names: NDArray[Any] = np.frombuffer(images._names, np.uint8)
        arrays: Arrays = {"names": names, "labels": images.labels}
        return arrays, len(images) >= dataset.WORTH and not nested

    arrays = once_per_node([root, *(root / name for name in found)], look)
    order = classes or found
    numbers = {name: number for number, name in enumerate(order)}
    places = np.array([numbers[name] for name in found], dtype=np.int32)
    images = ImageList(root, order, arrays["names"].tobytes(), places[arrays["labels"]])
    empty = sorted(set(found) - set(images.present()))
    if empty:
        raise DataError(
            f"{root} has class folders without images: {some(empty)}; fill or remove them"
            f"\n{expected(root.parent)}"
        )
    return images


def scan(root: Path, classes: Sequence[str], *, only_files: bool = True) -> ImageList:
    """List the images of class folders, some of which may be empty.

    With `only_files`, refuse links, pipes and devices with the name of an image that lead to no
    file; without, list them.
    """
    return ImageList.pack(
        root, classes, (_names(_walked(root / name, only_files)) for name in classes)
    )


def class_folders(split_dir: Path) -> list[str]:
    """Return the sorted class folders of a split; refuse a folder without."""
    try:
        with os.scandir(split_dir) as entries:
            kinds = {entry.name: _is_folder(entry) for entry in entries}
    except OSError as error:
        raise DataError(
            f"cannot read {split_dir}: {error.strerror}\n{expected(split_dir.parent)}"
        ) from None
    folders = sorted(name for name, is_folder in kinds.items() if is_folder)
    if folders:
        return folders
    loose = sum(map(is_image, kinds))
    raise DataError(
        f"{split_dir} has no class folders"
        + (f", but {loose} images: move each into a folder named after its class" if loose else "")
        + f"\n{expected(split_dir.parent)}"
    )


# The folders in a class folder, each relative to it and with its images; the first is "".
Walk = list[tuple[str, list[str]]]


def _names(walk: Walk) -> list[str]:
    return [f"{folder}/{file}" if folder else file for folder, files in walk for file in files]


def _walked(class_dir: Path, only_files: bool = True) -> Walk:
    """Return all folders of a class folder and their images, in ImageFolder's order."""
    try:
        return sorted(_walk(str(class_dir), "", only_files))
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from None


def _walk(top: str, inner: str, only_files: bool) -> Iterator[tuple[str, list[str]]]:
    folder = f"{top}/{inner}" if inner else top
    if inner.count("/") > MAX_LEVELS:
        raise DataError(
            f"{folder} is more than {MAX_LEVELS} folders deep; remove a link in it that leads back "
            "to a folder above"
        )
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if _is_folder(entry):
                name = f"{inner}/{entry.name}" if inner else entry.name
                yield from _walk(top, name, only_files)
            elif is_image(entry.name):
                if only_files and not entry.is_file(follow_symlinks=False):
                    _require_file(entry.path)
                files.append(entry.name)
    yield inner, sorted(files)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself
        return False


def _require_file(path: str) -> None:
    try:
        require_file(path)
    except OSError as error:
        raise DataError(
            f"{path} is no image file: {error.strerror}; repair or remove it; "
            "to name all such files: ddl data verify DIR"
        ) from None


def is_image(name: str) -> bool:
    """Tell by its extension whether a file is an image."""
    return name.lower().endswith(EXTENSIONS)


def expected(root: Path) -> str:
    """Return the layout of an image folder and how to get one."""
    return (
        "expected an ImageNet-like folder:\n"
        f"  {root}/\n"
        "    train/<class>/*.JPEG\n"
        "    val/<class>/*.JPEG\n"
        "make a sample set with `ddl data sample`, or name another folder with `--data DIR`"
    )
