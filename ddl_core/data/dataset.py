"""The images of a run, by number."""

import logging
from pathlib import Path

import numpy as np

from ddl_core.config import RunSpec
from ddl_core.data.formats import open_format
from ddl_core.data.sampling import Indices, Split, spread
from ddl_core.errors import DataError, SpecError
from ddl_core.registry import known

log = logging.getLogger(__name__)

FOLDERS = {"train": "train", "eval": "val"}


class Dataset:
    """The images of one split that a run uses, numbered from 0.

    If an epoch takes each several times, each pass has numbers of its own. `DataError` for missing
    or wrong data, `SpecError` if the run asks for more images or fewer classes than there are.
    """

    def __init__(self, spec: RunSpec, data_dir: Path | None, split: Split) -> None:
        if data_dir is None:
            raise DataError(
                f"loader {spec.loader!r} reads images; name their folder with --data DIR"
            )
        entry = known("loader", spec.loader)
        found = open_format(spec.data_format, data_dir)
        self.listing = found.images(FOLDERS[split], entry.extensions if entry else ())
        # Published TFRecords do not say how many classes they have.
        self.classes = len(self.listing.classes) or spec.classes
        if self.classes > spec.classes:
            raise SpecError(
                f"classes = {spec.classes}, but {data_dir} has {self.classes} class folders; "
                f"set classes to at least {self.classes}"
            )
        self.most_classes = spec.classes
        limit, there = getattr(spec, f"{split}_images"), len(self.listing)
        if limit is not None and limit > there:
            raise SpecError(
                f"{split}_images = {limit}, but there are only {there}; lower it or leave it out"
            )
        self.chosen: Indices = spread(limit or there, there)  # of `listing`, ascending
        self.passes = spec.passes(len(self.chosen)) if split == "train" else 1

    def __len__(self) -> int:
        """Return the number of images, each as often as an epoch takes it."""
        return len(self.chosen) * self.passes

    def _index(self, number: int) -> int:
        return int(self.chosen[number % len(self.chosen)])

    def read(self, number: int) -> tuple[bytes, int]:
        """Return an image's file and label; `DataError` if it is gone, or the label too large."""
        content, label = self.listing.read(self._index(number))
        if label >= self.most_classes:
            raise DataError(
                f"{self.name(number)} has label {label} (from 0), but the run has classes = "
                f"{self.most_classes}; set classes to at least {label + 1}"
            )
        return content, label

    def name(self, number: int) -> str:
        """Return the name of an image for messages."""
        return self.listing.name(self._index(number))

    def paths(self, numbers: Indices) -> set[str]:
        """Return the paths of the files that hold some images."""
        return self.listing.paths(self.chosen[numbers % len(self.chosen)])

    def of_pass(self, numbers: Indices, again: int) -> Indices:
        """Return the places in `listing` of those of some ascending numbers that a pass has."""
        first = again * len(self.chosen)
        low, high = np.searchsorted(numbers, [first, first + len(self.chosen)])
        return self.chosen[numbers[low:high] - first]


class NamedOnce:
    """Logs each unreadable image once in a process."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def __call__(self, name: str, reason: object) -> None:
        """Log an image, if it is new."""
        if name not in self._named:
            self._named.add(name)
            log.warning("%s is unreadable (%s); a mean-coloured image replaces it", name, reason)
