"""Write files into class folders: a set is there whole, or not at all."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from tqdm import tqdm

from ddl_core.datasets.bulk import alone, explained, require_space
from ddl_core.errors import DataError
from ddl_core.spec.gate import some

BYTES_PER_IMAGE = 4_096  # one block of the usual file systems; the images of small sets are smaller


class Files(Protocol):
    """The images of a split as files."""

    @property
    def classes(self) -> Sequence[str]:
        """What a label is an index into."""
        ...

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def file(self, number: int) -> tuple[str, bytes, int]:
        """Return suffix, content and label of an image."""
        ...


def write_folder(
    folder: Path, splits: Mapping[str, Files], progress: bool, beside: Mapping[str, str]
) -> int:
    """Fill a folder; return its number of images, or 0 if another process has made it meanwhile.

    Parameters
    ----------
    folder
        Receives ``<split>/<class>/<number>.<suffix>``, and no folder of a class without images.
    splits
        By name, that of training first.
    progress
        Show a progress bar on stderr.
    beside
        Texts of further files, by name.

    Raises
    ------
    DataError
        If it cannot be written, or a class of another split has no images in the first.
    """
    size = BYTES_PER_IMAGE * sum(map(len, splits.values()))
    with explained(f"make {folder}", size):
        folder.parent.mkdir(parents=True, exist_ok=True)
        require_space(folder.parent, size)
        with alone(folder.with_name(f".{folder.name}.lock")):
            return 0 if folder.exists() else _write(folder, splits, progress, beside)


def _write(
    folder: Path, splits: Mapping[str, Files], progress: bool, beside: Mapping[str, str]
) -> int:
    """Fill a folder beside the final one, then rename it."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    images = sum(map(len, splits.values()))
    known: set[str] = set()
    try:
        with tqdm(total=images, unit="image", disable=not progress) as bar:
            for name, split in splits.items():
                found = _write_split(unfinished / name, split, bar)
                known = known or found
                if new := sorted(found - known):
                    raise DataError(
                        f"{name} has images of classes of which training has none: {some(new)}; "
                        "leave them out, or move some to training"
                    )
        for name, text in beside.items():
            (unfinished / name).write_text(text, encoding="utf-8")
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return images


def _write_split(place: Path, split: Files, bar: "tqdm[NoReturn]") -> set[str]:
    """Write the images; return the classes that have some."""
    found: set[str] = set()
    for number in range(len(split)):
        suffix, content, label = split.file(number)
        name = split.classes[label]
        if name not in found:
            (place / name).mkdir(parents=True)
            found.add(name)
        (place / name / f"{number:05d}{suffix}").write_bytes(content)
        bar.update()
    return found
