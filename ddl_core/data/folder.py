"""Image folders, in the order of torchvision's ImageFolder and in little memory."""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from ddl_core.errors import DataError, LaunchError
from ddl_core.files import replacing, some
from ddl_core.system import kept

SPLITS = ("train", "val")  # folders
# Those of torchvision.datasets.ImageFolder.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

Arrays = dict[str, NDArray[Any]]

MIN_CACHED_BYTES = 200_000  # of some 10,000 images
LISTING = r"[0-9a-f]{64}\.(npz|lock)"
KEPT_S = 30 * 86_400
PATIENCE_S = 600.0  # for the listing of another process
SETTLED_S = 5.0  # time after which a file system's clock shows another change


class ImageList:
    """Paths and labels of the images of one split, in few objects that forked processes share.

    About 40 MB for ImageNet, where a list of (path, label) tuples takes 300 MB in each process.
    """

    def __init__(
        self, root: Path, classes: Sequence[str], names: bytes, labels: NDArray[np.int32]
    ) -> None:
        """Take file names relative to their class folders, each with a zero byte at its end."""
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
        return len(self.labels)

    def name(self, index: int) -> str:
        """Return an image's path relative to the split's folder, ``0 <= index < len``."""
        start = self._ends[index - 1] + 1 if index else 0
        file = os.fsdecode(self._names[start : self._ends[index]])
        return f"{self.classes[self.labels[index]]}/{file}"

    def path(self, index: int) -> str:
        """Return an image's path."""
        return f"{self.root}/{self.name(index)}"

    def paths(self, indices: NDArray[np.int64]) -> set[str]:
        """Return the paths of some images."""
        return {self.path(index) for index in indices.tolist()}

    def label(self, index: int) -> int:
        """Return an image's class as an index into `classes`."""
        return int(self.labels[index])

    def read(self, index: int) -> tuple[bytes, int]:
        """Return the encoded image and its label; a `DataError` if its file is gone."""
        path = self.path(index)
        try:
            return Path(path).read_bytes(), self.label(index)
        except FileNotFoundError:
            raise DataError(f"{path} was listed when the run began and is gone now") from None
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from None

    def present(self) -> list[str]:
        """Return the classes that have images."""
        return [self.classes[label] for label in np.unique(self.labels)]

    def fingerprint(self) -> str:
        """Return the SHA-256 over class names, file names and labels."""
        digest = hashlib.sha256(os.fsencode("\0".join((*self.classes, "", ""))))
        digest.update(self._names)
        digest.update(self.labels.astype("<i4").tobytes())
        return digest.hexdigest()


def list_images(
    split_dir: str | Path,
    classes: Sequence[str] | None = None,
    extensions: tuple[str, ...] = EXTENSIONS,
) -> ImageList:
    """List the images below ``split_dir/<class>/``: classes sorted, files sorted in each.

    `classes` are the sorted classes that the labels count: by default the folders found, for the
    validation split those of the training split.
    """
    root = Path(split_dir).absolute()
    found = class_folders(root)
    unknown = sorted(set(found) - set(classes or found))
    if unknown:
        raise DataError(f"{root} has class folders that training does not know: {some(unknown)}")

    def walk() -> tuple[Arrays, bool]:
        images, nested = _walk(root, found, extensions)
        names = np.frombuffer(images._names, np.uint8)
        # The class folder does not show a change in a folder inside it.
        return {"names": names, "labels": images.labels}, not nested

    arrays = cached_on_node([root, *(root / name for name in found)], walk, extensions)
    order = classes or found
    numbers = {name: number for number, name in enumerate(order)}
    places = np.array([numbers[name] for name in found], dtype=np.int32)
    images = ImageList(root, order, arrays["names"].tobytes(), places[arrays["labels"]])
    empty = sorted(set(found) - set(images.present()))
    if empty:
        raise DataError(
            f"{root} has class folders without images: {some(empty)}; fill or remove them "
            f"(images: {some(extensions)})"
            f"\n{expected(root.parent)}"
        )
    return images


def scan(root: Path, classes: Sequence[str]) -> ImageList:
    """List the images of class folders, some of which may be empty."""
    return _walk(root, classes, EXTENSIONS)[0]


def class_folders(split_dir: Path) -> list[str]:
    """Return the sorted class folders of a split, without hidden ones.

    `DataError` if it has none, or holds a link that leads nowhere: its class would be missing.
    """
    try:
        with os.scandir(split_dir) as entries:
            kinds = {entry.name: entry.is_dir() for entry in entries if not is_hidden(entry.name)}
    except OSError as error:
        raise DataError(
            f"cannot read {split_dir}: {error.strerror}\n{expected(split_dir.parent)}"
        ) from None
    folders = sorted(name for name, is_folder in kinds.items() if is_folder)
    lost = [name for name in sorted({*kinds} - {*folders}) if not (split_dir / name).exists()]
    if lost:
        raise DataError(
            f"{split_dir} has links that lead nowhere: {some(lost)}; repair or remove them"
        )
    if folders:
        return folders
    loose = sum(map(is_image, kinds))
    raise DataError(
        f"{split_dir} has no class folders"
        + (f", but {loose} images: move each into a folder named after its class" if loose else "")
        + f"\n{expected(split_dir.parent)}"
    )


def _walk(
    root: Path, classes: Sequence[str], extensions: tuple[str, ...]
) -> tuple[ImageList, bool]:
    """Return all images in ImageFolder's order, and whether class folders contain folders."""
    nested = False

    def names() -> Iterator[list[str]]:
        nonlocal nested
        for top in (str(root / name) for name in classes):
            folders = sorted(_seen(top))
            nested = nested or len(folders) > 1
            files = (f"{path}/{name}" for path, _, found in folders for name in sorted(found))
            yield [file[len(top) + 1 :] for file in files if is_image(file, extensions)]

    try:
        images = ImageList.pack(root, classes, names())
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from None
    return images, nested


def _seen(top: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk through a folder as `os.walk` does, but not into hidden folders."""
    for path, folders, files in os.walk(top, onerror=_fail, followlinks=True):
        folders[:] = (name for name in folders if not is_hidden(name))
        yield path, folders, files


def _fail(error: OSError) -> None:
    raise error


def is_hidden(name: str) -> bool:
    """Return whether a folder is hidden by its name: programs keep such ones for themselves."""
    return name.startswith(".")


def is_image(name: str, extensions: tuple[str, ...] = EXTENSIONS) -> bool:
    """Return whether a file is an image by its extension."""
    return name.lower().endswith(extensions)


def expected(root: Path) -> str:
    """Return the layout of an image folder and how to get one."""
    return (
        "expected an ImageNet-like folder:\n"
        f"  {root}/\n"
        "    train/<class>/*.JPEG\n"
        "    val/<class>/*.JPEG\n"
        "make a sample set with `ddl data sample`, or name another folder with `--data DIR`"
    )


def cached_on_node(
    places: Iterable[Path],
    look: Callable[[], tuple[Arrays, bool]],
    extensions: tuple[str, ...] = (),
) -> Arrays:
    """Return the arrays of `look`; the first rank of a node stores them in a file for the others.

    `places` are the files and folders that determine the arrays. `look` also returns whether they
    show every change. Other `extensions` give other arrays of the same places.
    """
    try:
        key = _state(places, extensions)
    except OSError:
        key = None
    return kept_on_node(key, look, MIN_CACHED_BYTES)


def kept_on_node(key: str | None, look: Callable[[], tuple[Arrays, bool]], least: int) -> Arrays:
    """Return the arrays of `look`, which one process of a node stores for all under a `key`.

    `look` also returns whether they may be stored; without a key, or if they have less than `least`
    bytes, they are not.
    """
    try:
        file = kept("listings") / f"{key}.npz" if key else None
    except (OSError, LaunchError):
        file = None
    if file is None:
        return look()[0]
    with ExitStack() as stack:
        with suppress(OSError):  # without a lock, the work is done more than once
            stack.enter_context(FileLock(file.with_suffix(".lock")).acquire(timeout=PATIENCE_S))
        with suppress(OSError, ValueError, EOFError, BadZipFile), file.open("rb") as content:
            found = dict(np.load(content))
            os.utime(file)  # see `_forget_old`
            return found
        arrays, store = look()
        if store and sum(array.nbytes for array in arrays.values()) >= least:
            with suppress(OSError), replacing(file, sync=False) as out:  # the disk may be full
                np.savez(out, allow_pickle=False, **arrays)
            _forget_old(file.parent)
        return arrays


def _forget_old(listings: Path) -> None:
    """Remove listings that nobody has used for a long time, with their locks."""
    oldest = time.time() - KEPT_S
    for file in listings.iterdir():
        if re.fullmatch(LISTING, file.name):
            with suppress(OSError):
                if file.lstat().st_mtime < oldest:
                    file.unlink()


def _state(places: Iterable[Path], extensions: tuple[str, ...]) -> str | None:
    """Return a hash of the state of `places`; None if one has changed just now."""
    digest, latest = hashlib.sha256("\0".join(extensions).encode()), 0.0
    for place in places:
        now = place.stat()
        state = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
        digest.update(os.fsencode(place) + b"\0" + repr(state).encode())
        latest = max(latest, now.st_mtime, now.st_ctime)
    return digest.hexdigest() if latest < time.time() - SETTLED_S else None
