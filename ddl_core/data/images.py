"""The images of a run: which ones, in which order, and which rank takes which."""

import logging
from collections.abc import Iterator
from pathlib import Path

from ddl_core.config import RunSpec
from ddl_core.data.dataset import EncodedDataset
from ddl_core.data.folder import class_folders, list_images
from ddl_core.data.sampling import (
    Indices,
    Split,
    count_batches,
    eval_batches,
    spread,
    train_batches,
)
from ddl_core.data.shards import list_records, shards_folder
from ddl_core.errors import DataError, SpecError

log = logging.getLogger(__name__)

FOLDERS = {"train": "train", "eval": "val"}


class Images:
    """The images of one split that a run uses, numbered from 0.

    Where an epoch takes each several times, the numbers go on: for order, views and checks these
    are images of their own.

    Raises
    ------
    DataError
        If the data are not there or not as they should be.
    SpecError
        If the run asks for more images than there are, or has too few classes.
    """

    def __init__(self, spec: RunSpec, data_dir: Path | None, split: Split) -> None:
        if data_dir is None:
            raise DataError(
                f"loader {spec.loader!r} reads images; name their folder with --data DIR"
            )
        self._all = _listing(spec, data_dir, split)
        # Published TFRecords do not say how many classes they have.
        self.classes = len(self._all.classes) or spec.classes
        if self.classes > spec.classes:
            raise SpecError(
                f"classes = {spec.classes}, but {data_dir} has {self.classes} class folders; "
                f"set classes to at least {self.classes}"
            )
        self._classes = spec.classes
        limit = spec.train_images if split == "train" else spec.eval_images
        self._chosen = spread(_limited(len(self._all), limit, split), len(self._all))
        self.passes = spec.passes(len(self._chosen)) if split == "train" else 1

    def __len__(self) -> int:
        """Return how many there are, each as often as an epoch takes it."""
        return len(self._chosen) * self.passes

    def _index(self, number: int) -> int:
        return int(self._chosen[number % len(self._chosen)])

    def read(self, number: int) -> tuple[bytes, int]:
        """Return the content of an image file, and its label.

        Raises
        ------
        DataError
            If it has gone, or its label is not one of the run's classes.
        """
        content, label = self._all.read(self._index(number))
        if label >= self._classes:
            raise DataError(
                f"{self.name(number)} has label {label} (from 0), but the run has classes = "
                f"{self._classes}; set classes to at least {label + 1}"
            )
        return content, label

    def name(self, number: int) -> str:
        """Return what to call an image in a message."""
        return self._all.name(self._index(number))

    def fingerprint(self) -> str:
        """Return the SHA-256 that identifies the split's files."""
        return self._all.fingerprint()

    def chosen(self) -> tuple[EncodedDataset, Indices]:
        """Return the split's listing, and the index into it of each number, in ascending order."""
        return self._all, self._chosen


def _listing(spec: RunSpec, data_dir: Path, split: Split) -> EncodedDataset:
    if spec.data_format == "tfrecord":
        return list_records(shards_folder(data_dir), FOLDERS[split])
    # Labels count the training classes: one without validation images must not shift the rest.
    classes = class_folders(data_dir / FOLDERS["train"])
    return list_images(data_dir / FOLDERS[split], classes)


def _limited(found: int, limit: int | None, split: Split) -> int:
    if limit is not None and limit > found:
        raise SpecError(
            f"{split}_images = {limit}, but there are only {found}; lower it or leave it out"
        )
    return limit or found


class Batches:
    """Which images one rank loads, batch by batch; iterating begins the epoch last set.

    The epoch's order is drawn when it is set, before the clock starts. A batch is a list of (epoch,
    number): a loader process that lives on cannot know the epoch.
    """

    def __init__(
        self, spec: RunSpec, split: Split, images: int, rank: int, world_size: int
    ) -> None:
        self._spec, self._split = spec, split
        self._images, self._rank, self._world_size = images, rank, world_size
        self._count = count_batches(spec, split, images, rank, world_size)
        self._epoch = 0
        self._next: Iterator[Indices] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that iterating begins."""
        return self._epoch

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._epoch = number
        self._next = self._drawn()

    def _drawn(self) -> Iterator[Indices]:
        if self._split == "train":
            return train_batches(self._spec, self._images, self._epoch, self._rank)
        return eval_batches(self._spec, self._images, self._rank, self._world_size)

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        return self._count

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the batches of the epoch."""
        batches, self._next = self._next or self._drawn(), None
        epoch = self._epoch
        for indices in batches:
            yield [(epoch, index) for index in indices.tolist()]


class ImageSource:
    """One rank's share of the images of a split; subclasses make batches of them.

    It is a `Source` of `ddl_core/fairness.py`, as far as that is the same with every framework.

    Raises
    ------
    DataError, SpecError
        As `Images`.
    """

    rescued_images: int | None = None
    own_order = False

    def __init__(
        self, spec: RunSpec, data_dir: Path | None, split: Split, rank: int, world_size: int
    ) -> None:
        self._files = Images(spec, data_dir, split)
        self.images = len(self._files)
        self.classes = self._files.classes
        self.fingerprint: str | None = self._files.fingerprint()
        self.corrupt_images = 0
        self.seen: list[Indices] | None = []
        self._spec, self._split = spec, split
        self._rank, self._world_size = rank, world_size
        self._plan = Batches(spec, split, self.images, rank, world_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose order and augmentation."""
        self._plan.epoch = epoch
        self.corrupt_images = 0
        self.seen = []

    def __len__(self) -> int:
        """Return the micro-batches per epoch."""
        return len(self._plan)


class NamedOnce:
    """Logs each unreadable image once in a process."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def __call__(self, name: str, reason: object) -> None:
        """Log it, if it is new."""
        if name not in self._named:
            self._named.add(name)
            log.warning("%s is unreadable (%s); a mean-coloured image replaces it", name, reason)
