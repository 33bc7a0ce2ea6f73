"""Write files into class folders: a set is there whole, or not at all."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tqdm import tqdm

from ddl_core.datasets.bulk import alone, explained, require_space

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
        Receives ``<split>/<class>/<number>.<suffix>``.
    splits
        By name.
    progress
        Show a progress bar on stderr.
    beside
        Texts of further files, by name.

    Raises
    ------
    DataError
        If it cannot be written.
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
    with tqdm(total=images, unit="image", disable=not progress) as bar:
        for name, split in splits.items():
            folders = [unfinished / name / class_name for class_name in split.classes]
            for one in folders:
                one.mkdir(parents=True)
            for number in range(len(split)):
                suffix, content, label = split.file(number)
                (folders[label] / f"{number:05d}{suffix}").write_bytes(content)
                bar.update()
    for name, text in beside.items():
        (unfinished / name).write_text(text, encoding="utf-8")
    unfinished.rename(folder)
    return images
