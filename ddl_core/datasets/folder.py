"""List an ImageNet-like folder, in the order of torchvision's ImageFolder and in little memory."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ddl_core.datasets import listing
from ddl_core.datasets.listing import Arrays
from ddl_core.errors import DataError
from ddl_core.spec import gate
from ddl_core.spec.gate import some

# Those of torchvision.datasets.ImageFolder.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

# Inside one class folder. Links that lead to one another could make any number of them.
MOST_FOLDERS = 100_000


class ImageList:
    """Paths and labels of the images of one split.

    All names lie in one `bytes` object and their positions in one array: about 40 MB for the 1.28
    million images of ImageNet, where a list of (path, label) tuples takes 300 MB, and where a
    forked loader process copies that list page by page as it counts references.

    Attributes
    ----------
    root : Path
        Folder of the split.
    classes : tuple of str
        Class folders; a label is an index into them.
    labels : numpy.ndarray of int32, shape (images,)
    """

    def __init__(self, root: Path, classes: Sequence[str], names: Iterable[Sequence[str]]) -> None:
        """Pack `names`: for each class, its file names relative to the class folder, in order."""
        self._hold(root, classes, map(_packed, names))

    @classmethod
    def of_packed(cls, root: Path, classes: Sequence[str], names: Iterable[bytes]) -> Self:
        """Take, for each class, its file names as `_packed` joins them."""
        images = cls.__new__(cls)
        images._hold(root, classes, names)
        return images

    def _hold(self, root: Path, classes: Sequence[str], names: Iterable[bytes]) -> None:
        self.root = root
        self.classes = tuple(classes)
        packed = list(names)
        counts = [one.count(b"\0") for one in packed]
        self._names = b"".join(packed)
        self._ends = np.flatnonzero(np.frombuffer(self._names, dtype=np.uint8) == 0)
        self.labels: NDArray[np.int32] = np.repeat(np.arange(len(counts), dtype=np.int32), counts)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[str, int]:
        """Return path and label."""
        return self.path(index), self.label(index)

    def name(self, index: int) -> str:
        """Return an image's path relative to the split's folder, for messages and records."""
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
        """Return the encoded image and its label.

        Raises
        ------
        DataError
            If the file was there when the folder was listed and is gone now, or may not be read.
        """
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
        """Return the SHA-256 over class names, file names and labels, but not over contents."""
        digest = hashlib.sha256(os.fsencode("\0".join((*self.classes, "", ""))))
        digest.update(self._names)
        digest.update(self.labels.astype("<i4").tobytes())
        return digest.hexdigest()


def list_images(split_dir: str | Path, classes: Sequence[str] | None = None) -> ImageList:
    """List the images below ``split_dir/<class>/``: classes sorted, files sorted in each.

    Parameters
    ----------
    split_dir
        Such as ``imagenet/train``.
    classes
        The classes that the labels count. Give those of the training split when listing the
        validation split: by default they are the folders found, and one that is absent in
        validation would shift all later labels.

    Raises
    ------
    DataError
        If the folder is missing, is not readable, has no class folders, has a class that is not
        in `classes`, or has a class folder without images.
    """
    root = Path(split_dir).absolute()
    found = class_folders(root)
    unknown = sorted(set(found) - set(classes or found))
    if unknown:
        raise DataError(f"{root} has class folders that training does not know: {some(unknown)}")
    images = _listed_once(root, found, classes)
    empty = sorted(set(found) - set(images.present()))
    if empty:
        raise DataError(
            f"{root} has class folders without images: {some(empty)}; fill or remove them"
            f"\n{expected(root.parent)}"
        )
    return images


def _packed(names: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _listed_once(root: Path, found: Sequence[str], classes: Sequence[str] | None) -> ImageList:
    """List like `scan`, but once for all ranks of a node; see `listing`."""

    def look() -> Arrays:
        walked = [_walk(root / name) for name in found]
        packed = [_packed(names) for names, _ in walked]
        flat = np.frombuffer(b"".join(packed), dtype=np.uint8)
        nested = any(nested for _, nested in walked)
        return flat, np.array([len(one) for one in packed]), np.array(nested)

    def worth(arrays: Arrays) -> bool:
        flat, _, nested = arrays
        # What changes in a folder inside a class folder does not change that one.
        return not nested and int(np.count_nonzero(flat == 0)) >= listing.WORTH

    places = [root, *(root / name for name in found)]
    flat, sizes, _ = listing.once_per_node(places, look, worth)
    ends = np.cumsum(sizes)
    parts = {
        name: flat[end - size : end].tobytes()
        for name, size, end in zip(found, sizes, ends, strict=True)
    }
    order = classes or found
    return ImageList.of_packed(root, order, (parts.get(name, b"") for name in order))


def scan(
    root: Path, found: Sequence[str], classes: Sequence[str] | None = None, odd: bool = False
) -> ImageList:
    """List the images of class folders, of which some may be empty; `odd` as in `_walk`."""
    order = classes or found
    present = set(found)
    return ImageList(
        root, order, (_walk(root / name, odd)[0] if name in present else () for name in order)
    )


def class_folders(split_dir: Path) -> list[str]:
    """Return the sorted class folders of a split.

    Raises
    ------
    DataError
        If there are none, or if the folder cannot be read.
    """
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


def _walk(class_dir: Path, odd: bool = False) -> tuple[list[str], bool]:
    """Return the images below a class folder in ImageFolder's order, and whether it has folders.

    Names are relative to it. `odd` lets through what has an image's name and is no file.

    Raises
    ------
    DataError
        If a folder cannot be read, a link leads in a circle, or an image is no file.
    """
    names = []
    top = str(class_dir)
    walked = sorted(_folders(top, odd))
    for folder, files in walked:
        inner = folder[len(top) + 1 :]
        names += [f"{inner}/{file}" if inner else file for file in sorted(files)]
    return names, len(walked) > 1


def _folders(top: str, odd: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder from `top` down with its images; links are followed, but in no circle."""
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [(top, frozenset())]
    seen = 0
    while waiting:
        folder, above = waiting.pop()
        seen += 1
        if seen > MOST_FOLDERS:
            raise DataError(f"{top} has more than {MOST_FOLDERS:,} folders; links may be the cause")
        files = []
        try:
            state = Path(folder).stat()
            here = (state.st_dev, state.st_ino)
            if here in above:
                raise DataError(f"{folder} leads back to a folder above it; remove that link")
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _is_folder(entry):
                        waiting.append((entry.path, above | {here}))
                    elif is_image(entry.name):
                        if not odd:
                            _require_file(entry)
                        files.append(entry.name)
        except OSError as error:
            raise DataError(f"cannot read {error.filename}: {error.strerror}") from None
        yield folder, files


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself
        return False


def _require_file(entry: "os.DirEntry[str]") -> None:
    """Refuse what has an image's name and is none; asks the system of links only."""
    if entry.is_file(follow_symlinks=False):
        return
    try:
        gate.require_file(entry.path)
    except OSError as error:
        link = f" (a link to {Path(entry.path).readlink()})" if entry.is_symlink() else ""
        raise DataError(
            f"{entry.path}{link} is no image file: {error.strerror}; repair or remove it; "
            "all such files: ddl data verify DIR"
        ) from None


def is_image(name: str) -> bool:
    """Tell by its extension whether a file is an image."""
    return name.lower().endswith(EXTENSIONS)


def expected(root: Path) -> str:
    """Return what an ImageNet-like folder looks like and how to get one."""
    return (
        "expected an ImageNet-like folder:\n"
        f"  {root}/\n"
        "    train/<class>/*.JPEG\n"
        "    val/<class>/*.JPEG\n"
        "make a sample set with `ddl data sample`, or name another folder with `--data DIR`"
    )
