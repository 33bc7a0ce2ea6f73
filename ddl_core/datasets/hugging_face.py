"""Read image sets that the library `datasets` of Hugging Face has saved to disk.

The library reads them. Nothing is downloaded, and a saved set has no code that could be executed.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import file_digest, sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddl_core.errors import DataError, NotInstalledError
from ddl_core.spec.gate import require_file, some

VERSION = "5.2.0"  # of requirements/test.txt, which a test compares
VALIDATION = ("validation", "valid", "val")
_DICT = "dataset_dict.json"
_ONE = ("state.json", "dataset_info.json")
_TABLES = ("arrow", "parquet")
_NAME = re.compile(r"\w[\w.-]*")
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


class Split:
    """One split of a set: stored images and their labels."""

    def __init__(self, rows: Any, image: str, label: str, fingerprint: str) -> None:
        self.classes = tuple(rows.features[label].names)
        self.fingerprint = fingerprint
        self._rows, self._image, self._label = rows, image, label
        self._labels: list[int] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> tuple[bytes, int]:
        row = self._rows[number]
        return _content(row[self._image] or {}), row[self._label]

    def label(self, number: int) -> int:
        """Return the class of an image; -1 where it has none."""
        if self._labels is None:
            self._labels = [-1 if one is None else int(one) for one in self._rows[self._label]]
        return self._labels[number]

    def name(self, number: int) -> str:
        """Return by what an image of a set that nobody has divided is told from others."""
        return str(number)


def is_saved(folder: Path) -> bool:
    """Tell by its files whether a folder was written by ``save_to_disk``."""
    return _is_one(folder) or _is_file(folder / _DICT)


def is_other(folder: Path) -> bool:
    """Tell whether a folder holds files of the library in another form: a cache, a repository."""
    places = (folder, folder / "data", folder / "train")
    return any(next(place.glob(f"*.{kind}"), None) for place in places for kind in _TABLES)


def read(folder: Path) -> Mapping[str, Split]:
    """Return the splits ``train`` and ``val``; or the only one, by any other name.

    Raises
    ------
    DataError
        If the set is damaged, or has not one column of images and one of classes, or if its splits
        are not clear.
    NotInstalledError
        If the library is missing.
    """
    whole = folder.absolute()
    if "::" in str(whole):
        raise DataError(
            f"{whole}: the library takes a name with '::' for an address in the network; rename it"
        )
    library = _library(folder)
    found = {name: _split(library, place) for name, place in _places(whole).items()}
    classes = {one.classes for one in found.values()}
    if len(classes) > 1:
        told = " and ".join(some(list(map(repr, one))) for one in classes)
        raise DataError(f"{folder}: training and validation have different classes: {told}; "
                        "cast both to one ClassLabel and save the set again")  # fmt: skip
    return found


def _is_one(folder: Path) -> bool:
    return all(_is_file(folder / name) for name in _ONE)


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 (Path's raises where a folder may not be entered)


def _library(folder: Path) -> ModuleType:
    """Import it offline: it looks at these variables only then."""
    before = {name: os.environ.get(name) for name in _OFFLINE}
    os.environ.update(dict.fromkeys(_OFFLINE, "1"))
    try:
        import datasets
        from datasets import Dataset  # noqa: F401 (a folder of this name is no library)
    except ImportError as error:
        raise NotInstalledError(
            f"{folder} needs the package 'datasets', which cannot be imported ({error}); run "
            f"`pip install datasets=={VERSION}`"
        ) from None
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return datasets


def _places(folder: Path) -> dict[str, Path]:
    if _is_one(folder):
        return {"all": folder}
    names = _names(folder)
    if len(names) == 1:
        return {"all": folder / names[0]}
    held = [name for name in VALIDATION if name in names] or [n for n in names if n == "test"]
    if "train" not in names or len(held) != 1:
        raise DataError(
            f"{folder} has the splits {some(names) or '(none)'}; it has to have one alone, or "
            f"'train' and one of {', '.join(VALIDATION)}, or 'train' and 'test'; save a "
            "DatasetDict of those that you want"
        )
    return {"train": folder / "train", "val": folder / held[0]}


def _names(folder: Path) -> list[str]:
    with _readable(folder / _DICT):
        names = json.loads((folder / _DICT).read_text(encoding="utf-8"))["splits"]
        if not isinstance(names, list) or not all(map(_NAME.fullmatch, names)):
            raise ValueError("its splits are no list of names")
    return names


@contextmanager
def _readable(place: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # whatever json, Arrow and the library raise of damaged files
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DataError(f"{place} cannot be read as a saved set of images ({said}); copy it once "
                        "more, or save it again with save_to_disk") from error  # fmt: skip


def _split(library: ModuleType, place: Path) -> Split:
    with _readable(place):
        parts = sorted(place.glob("*.arrow"))
        if not parts:  # of an empty set the library writes none, and cannot read that
            raise DataError(f"{place} has no file *.arrow: the set has no images, or was not "
                            "copied whole; save or copy it again")  # fmt: skip
        for path in parts:
            require_file(path)
        found = library.Dataset.load_from_disk(os.fspath(place), keep_in_memory=False)
        # Else an offset that points out of a damaged file would end the process.
        found.data.validate(full=True)
        image = _column(place, found.features, library.Image)
        label = _column(place, found.features, library.ClassLabel)
        _require_labels(place, found.data.column(label).to_numpy())
        files = [one["filename"] for one in found.cache_files]
        told = _fingerprint([image, label, *found.features[label].names], files)
        rows = found.with_format(None).select_columns([image, label])
        return Split(rows.cast_column(image, library.Image(decode=False)), image, label, told)


def _column(place: Path, features: Mapping[str, Any], feature: type) -> str:
    found = [name for name, one in features.items() if isinstance(one, feature)]
    if len(found) == 1:
        return found[0]
    told = f"these: {_quoted(found)}" if found else f"none among {_quoted(features)}"
    raise DataError(
        f"{place} has to have one column of type {feature.__name__}, but has {told}; "
        "choose in a function of your own: docs/your_data.md"
    )


def _require_labels(place: Path, labels: NDArray[Any]) -> None:
    """Refuse a split of which not all labels are known, before anything is written."""
    known = np.count_nonzero(labels >= 0)  # NaN, which stands for none, is not
    if known < len(labels):
        raise DataError(
            f"{place}: {len(labels) - known:,} of {len(labels):,} images have no label (none, or "
            "-1, as where labels are kept secret); save a DatasetDict without them"
        )


def _quoted(names: Any) -> str:
    return some(list(map(repr, names)))


def _fingerprint(names: Sequence[str], files: Sequence[str]) -> str:
    """Return the SHA-256 over names and contents.

    The library's own is no help: it tells the functions that made a set, not what these read, and
    differs between two sets with the same content.
    """
    digest = sha256(json.dumps(names).encode())
    for name in files:
        with Path(name).open("rb") as file:
            digest.update(file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _content(stored: Mapping[str, Any]) -> bytes:
    content, path = stored.get("bytes"), stored.get("path")
    if content is None:
        if path is None:
            raise DataError("it has neither bytes nor a path")
        try:
            require_file(path)
            content = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
    if not content:
        raise DataError("it has no bytes")
    return content
