"""Write a set of one's own as an image folder, which all loaders read.

It is a function of one's own, a set that Hugging Face's `datasets` saved, or class folders that
nobody has divided into training and validation. What is written is plain: RGB or grey, 8 bits
(`plain`).
"""

import io
import json
import os.path
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from ddl_core.datasets import hugging_face, plain
from ddl_core.datasets.folder import class_folders, list_images, scan
from ddl_core.datasets.image_file import why
from ddl_core.datasets.writing import write_folder
from ddl_core.errors import DataError, NotInstalledError, SpecError
from ddl_core.spec.gate import shown, some

SPLITS = ("train", "val")
ONE_IN = 10  # of undivided images are for validation
SOURCE = "source.json"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
_JPEG = b"\xff\xd8\xff"


class OwnSplit(Protocol):
    """What a function of one's own returns of each split."""

    @property
    def classes(self) -> Sequence[str]:
        """What a label is an index into."""
        ...

    @property
    def fingerprint(self) -> str:
        """What changes with the set, so that another one is never taken for it."""
        ...

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def __getitem__(self, number: int) -> tuple[Any, int]:
        """Return an image and its label.

        The image is one of Pillow, an array (height, width) or (height, width, 1, 3 or 4) of 8 or
        16 bits, or the bytes of a file.
        """
        ...


def write_own(source: str, out_dir: Path, progress: bool = True) -> int:
    """Write a set to `out_dir`, whole or not at all; return its number of images.

    What is there already from the same set is left as it is; the number is then 0.

    Parameters
    ----------
    source
        ``package.module:function``, without arguments, that returns ``{"train": ..., "val": ...}``
        of `OwnSplit`; a folder that ``save_to_disk`` of Hugging Face's `datasets` wrote; or a
        folder of class folders.
    out_dir
        Receives ``train/<class>/*`` and ``val/<class>/*``.
    progress
        Show a progress bar on stderr.

    Raises
    ------
    DataError
        If the set is empty, an image or a label of it is wrong, another set is in `out_dir`, or
        that cannot be written.
    SpecError, NotInstalledError
        If there is no such function, or no `datasets`.
    """
    splits = _called(source) if _FUNCTION.fullmatch(source) else _found(source)
    told = {name: f"{one.fingerprint}" for name, one in splits.items()}
    folder = out_dir.absolute()
    if folder.exists():
        _require_same(folder, told)
        return 0
    return write_folder(folder, {name: _Files(name, one) for name, one in splits.items()},
                        progress, {SOURCE: json.dumps(told, indent=1) + "\n"})  # fmt: skip


def _require_same(folder: Path, told: Mapping[str, str]) -> None:
    try:
        class_folders(folder / "train")
    except DataError:
        raise DataError(
            f"{folder} is there and is no image folder; remove it, or name another folder"
        ) from None
    try:
        there = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        there = None
    if there != told:
        raise DataError(f"{folder} holds another set, or an older state of it; name another folder")


def _called(source: str) -> Mapping[str, OwnSplit]:
    module, _, name = source.partition(":")
    try:
        function = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise NotInstalledError(
            f"{shown(source)} needs {error.name!r}, which cannot be imported; put the folder that "
            "it is in on PYTHONPATH"
        ) from None
    except Exception as error:  # whatever a module of others raises
        said = f"{type(error).__name__}: {error}"
        raise DataError(f"{shown(source)} cannot be imported: {said}") from error
    if not callable(function):
        raise SpecError(f"{shown(source)}: {module} has no function {name!r}")
    try:
        found = function()
    except Exception as error:  # whatever it raises
        raise DataError(f"{shown(source)} failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping) or set(found) != set(SPLITS):
        raise DataError(f"{shown(source)} has to return a dict of 'train' and 'val'")
    for split, one in found.items():
        missing = [part for part in ("classes", "fingerprint", "__len__", "__getitem__")
                   if not hasattr(one, part)]  # fmt: skip
        if missing:
            raise DataError(f"{shown(source)}: {split} has no {', '.join(missing)}")
    return found


class _Whole(OwnSplit, Protocol):
    """Images that nobody has divided."""

    def name(self, number: int) -> str: ...

    def label(self, number: int) -> int: ...


class _Folders:
    """All images of class folders."""

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        self.classes = classes
        self._images = scan(folder, classes)
        self.fingerprint = self._images.fingerprint()

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[bytes, int]:
        return self._images.read(number)

    def name(self, number: int) -> str:
        return self._images.name(number)

    def label(self, number: int) -> int:
        return self._images.label(number)


class _Part:
    """The images of an undivided set that are in one split."""

    def __init__(self, whole: _Whole, numbers: Sequence[int]) -> None:
        self.classes, self.fingerprint = whole.classes, whole.fingerprint
        self._whole, self._numbers = whole, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return self._whole[self._numbers[number]]

    def name(self, number: int) -> str:
        return self._whole.name(self._numbers[number])


def _hash(name: str) -> int:
    return int(sha256(name.encode("utf-8", "surrogateescape")).hexdigest(), 16)


def _held(whole: _Whole) -> set[int]:
    """Return the images for validation: by the hash of their names, some of each class, not all.

    Raises
    ------
    DataError
        If a class has one image alone.
    """
    by_class: dict[int, list[int]] = {}
    for number in range(len(whole)):
        by_class.setdefault(whole.label(number), []).append(number)
    known = [one for one in sorted(by_class) if 0 <= one < len(whole.classes)]
    if alone := [str(whole.classes[one]) for one in known if len(by_class[one]) == 1]:
        raise DataError(
            f"classes with one image alone: {some(alone)}; training and validation need one each: "
            "add images, or leave these classes out"
        )
    chosen: set[int] = set()
    for numbers in by_class.values():
        hashes = {number: _hash(whole.name(number)) for number in numbers}
        held = [number for number in numbers if hashes[number] % ONE_IN == 0]
        held = held or [min(numbers, key=hashes.__getitem__)]
        chosen.update(held[:-1] if len(held) == len(numbers) else held)
    return chosen


def _found(source: str) -> Mapping[str, OwnSplit]:
    if not os.path.isdir(source):  # noqa: PTH112 (Path's raises for names that no file can have)
        raise DataError(
            f"source {shown(source)} is no folder, and not package.module:function; name either"
        )
    folder = Path(source)
    if hugging_face.is_saved(folder):
        saved = hugging_face.read(folder)
        return saved if len(saved) > 1 else _divided(*saved.values())
    if hugging_face.is_other(folder):
        raise DataError(
            f"{folder} holds files of Hugging Face's datasets, but not as save_to_disk writes "
            "them; save what load_dataset makes of it: docs/your_data.md"
        )
    found = class_folders(folder)
    if set(SPLITS) <= set(found):
        list_images(folder / "train")
        raise DataError(f"{folder} has train/ and val/ already: use it as it is, with --data DIR")
    return _divided(_Folders(folder, found))


def _divided(whole: _Whole) -> Mapping[str, OwnSplit]:
    held, numbers = _held(whole), range(len(whole))
    return {
        "train": _Part(whole, [number for number in numbers if number not in held]),
        "val": _Part(whole, [number for number in numbers if number in held]),
    }


class _Files:
    """The images of a split as files: a suffix, the file's bytes and the label of each."""

    def __init__(self, name: str, split: OwnSplit) -> None:
        self._name, self._split = name, split
        if not len(split):
            raise DataError(f"split {name!r} has no images")
        digits = len(str(len(split.classes) - 1))
        # Numbered, so that sorted folders give the labels.
        self.classes = [f"{label:0{digits}d}_{_plain_name(str(one))}"
                        for label, one in enumerate(split.classes)]  # fmt: skip

    def __len__(self) -> int:
        return len(self._split)

    def file(self, number: int) -> tuple[str, bytes, int]:
        """Return suffix, content and label.

        Raises
        ------
        DataError
            If image or label are none.
        """
        told = f"{self._name} image {number}"
        if isinstance(self._split, _Part):
            told += f" (undivided: {self._split.name(number)})"
        try:
            image, label = self._split[number]
            label = int(label)
            suffix, content = _encoded(image)
        except DataError as error:
            raise DataError(f"{told}: {error}") from error
        except Exception as error:  # whatever a set of others, or a damaged file, raises
            raise DataError(f"{told}: {why(error)}") from error
        if not 0 <= label < len(self.classes):
            raise DataError(f"{told} has label {label}, but there are {len(self.classes)} classes")
        return suffix, content, label


def _plain_name(name: str) -> str:
    return "".join(one if one.isalnum() or one in "-_." else "_" for one in name)[:100]


def _encoded(image: Any) -> tuple[str, bytes]:
    """Return suffix and bytes of a file; a plain JPEG keeps its bytes."""
    content = bytes(image) if isinstance(image, bytes | bytearray) else b""
    if content:
        image = Image.open(io.BytesIO(content))
        image.load()
        if content.startswith(_JPEG) and image.mode in ("L", "RGB"):
            return ".jpg", content
    elif not isinstance(image, Image.Image):
        image = _of_array(np.asarray(image))
    written = io.BytesIO()
    is_plain = image.mode == "L" and not image.has_transparency_data
    kept = image if is_plain else plain.rgb(image)
    kept.save(written, "PNG", compress_level=1)
    return ".png", written.getvalue()


def _of_array(values: np.ndarray) -> Image.Image:
    """Return the picture of an array; Pillow knows neither one channel nor colours of 16 bits."""
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.ndim == 3 and values.dtype == np.uint16:
        values = (values >> 8).astype(np.uint8)
    return Image.fromarray(values)
