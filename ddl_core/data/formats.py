"""Formats of data on disk: how each is found, listed, verified and written.

A new one is a class derived from `Format` and one entry of `registry.FORMATS`.
"""

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import ClassVar

from ddl_core.data.folder import EXTENSIONS, SPLITS, ImageList, class_folders, list_images, scan
from ddl_core.data.tfrecord import DESCRIPTION, RecordList, list_records, shards_folder, shards_in
from ddl_core.errors import DataError, NotInstalledError, SpecError
from ddl_core.registry import FORMATS, resolve

EncodedDataset = ImageList | RecordList
"""The images of one split by number, still encoded: files in folders or records in shards."""


class Format:
    """Images of the splits ``train`` and ``val`` below `folder`, in one format.

    `verifier` and `writer` name the functions of `ddl data verify` and `ddl data convert`, as
    ``"module:function"``; without, the commands refuse the format.
    """

    verifier: ClassVar[str] = ""  # as `ddl_tools.datasets.verify.check_images`
    writer: ClassVar[str] = ""  # as `ddl_tools.datasets.convert.plan_conversion`

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def is_there(self) -> bool:
        """Return whether the folder looks like a set of this format."""
        raise NotImplementedError

    def images(self, split: str, extensions: tuple[str, ...] = ()) -> EncodedDataset:
        """List a split; of class folders the files with `extensions`, else those of images.

        The result has the methods that `ImageList` and `RecordList` share.
        """
        raise NotImplementedError

    def some_images(self, chance: Random, classes: int) -> EncodedDataset:
        """List training images to draw from: of many class folders, a few drawn by `chance`."""
        return self.images("train")

    def folders(self) -> list[Path]:
        """Return the folders that have to be readable."""
        return [self.folder]

    def check(self) -> None:
        """Look for what is quickly seen to be missing; raise `DataError`."""
        self.describe()

    def describe(self) -> str:
        """Return what both splits consist of; `DataError` if a part is missing."""
        return " + ".join(f"{len(self.images(split)):,}" for split in SPLITS) + " images"


class ClassFolders(Format):
    """Image files in a folder per class."""

    verifier = "ddl_tools.datasets.verify:check_images"

    def is_there(self) -> bool:
        """Return whether the folder has a training split."""
        return (self.folder / "train").is_dir()

    def images(self, split: str, extensions: tuple[str, ...] = ()) -> ImageList:
        """List the files of a split; labels count the training classes."""
        classes = class_folders(self.folder / "train")
        return list_images(self.folder / split, classes, extensions or EXTENSIONS)

    def some_images(self, chance: Random, classes: int) -> ImageList:
        """List the files of some classes only: a large set takes minutes."""
        root = (self.folder / "train").absolute()
        found = class_folders(root)
        images = scan(root, sorted(chance.sample(found, min(classes, len(found)))))
        if not len(images):
            raise DataError(f"{root} has no images in {len(found)} class folders")
        return images

    def folders(self) -> list[Path]:
        """Return the folder and those of both splits."""
        return [self.folder, *(self.folder / split for split in SPLITS)]

    def check(self) -> None:
        """Look at the names of the class folders."""
        class_folders(self.folder / "train")

    def describe(self) -> str:
        """Return the number of classes; `DataError` if training lacks one of validation."""
        train, val = (set(class_folders(self.folder / split)) for split in SPLITS)
        if unknown := sorted(val - train):
            raise DataError(
                f"{self.folder / 'val'} has classes that training does not know: {unknown[0]}"
            )
        rest = f" ({len(train - val)} of them without validation images)" if train - val else ""
        return f"{len(train)} classes{rest}"


class TFRecord(Format):
    """Shards of records, in the folder or in ``tfrecord/`` in it."""

    verifier = "ddl_tools.datasets.verify:check_records"
    writer = "ddl_tools.datasets.convert:plan_conversion"

    def __init__(self, folder: Path) -> None:
        super().__init__(shards_folder(folder))
        self._given = folder

    def is_there(self) -> bool:
        """Return whether the folder has shards, or the description of a conversion."""
        if not self.folder.is_dir():
            return False
        shards = (shards_in(self.folder, split) for split in SPLITS)
        return (self.folder / DESCRIPTION).exists() or any(shards)

    def images(self, split: str, extensions: tuple[str, ...] = ()) -> RecordList:
        """List the records of a split."""
        return list_records(self.folder, split)

    def check(self) -> None:
        """Look at the indices and the first record of training."""
        if not shards_in(self.folder, "train"):
            raise DataError(
                f"{self.folder} has no TFRecord shards (train-00000-of-...); make them from image "
                f"files with `ddl data convert {self._given}`, or leave data_format out"
            )
        records = self.images("train")
        if len(records):
            records.read(0)  # names one without a label

    def describe(self) -> str:
        """Return the numbers of shards, all of which are there."""
        train, val = (len(self.images(split).shards) for split in SPLITS)
        return f"{train} + {val} shards"


def open_format(name: str, folder: Path) -> Format:
    """Return the data in a folder as a format of `registry.FORMATS`."""
    found: Format = resolve("data_format", name)(folder)
    return found


def format_of(folder: Path) -> str:
    """Return the format of a folder; if it has none, ``folder``, whose errors say what to do."""
    for name in FORMATS:
        with suppress(NotInstalledError, SpecError):  # a broken package disables its own name only
            if open_format(name, folder).is_there():
                return name
    return next(iter(FORMATS))
