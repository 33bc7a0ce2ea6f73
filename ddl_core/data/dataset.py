"""Base class of the lists of encoded images, and the cache that the ranks of a node share."""

import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from ddl_core.errors import LaunchError
from ddl_core.files import replacing
from ddl_core.system import kept

SPLITS = ("train", "val")

Arrays = dict[str, NDArray[Any]]

WORTH = 10_000  # images; listing fewer takes no noticeable time
# A file system's clock may be coarse: a second change at the same time would not be seen.
SETTLED_S = 5.0


class EncodedDataset(ABC):
    """The images of one split by number, still encoded: files in folders or records in shards.

    Attributes
    ----------
    classes : tuple of str
        A label is an index into them. Empty where the set does not name its classes.
    """

    classes: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def read(self, index: int) -> tuple[bytes, int]:
        """Return the encoded image and its label from 0, ``0 <= index < len``.

        Raises
        ------
        DataError
            If its file has gone or changed since the set was listed.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """Return what identifies an image within its split, for messages and records."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a SHA-256 over names and sizes that identifies the set; contents are not read."""


def once_per_node(places: Iterable[Path], look: Callable[[], tuple[Arrays, bool]]) -> Arrays:
    """Return the arrays of `look`; the first rank of a node stores them in one file for the others.

    At 1,024 ranks each would otherwise list ImageNet's 1.28 million names, or read 1,152 indices.

    Parameters
    ----------
    places
        Files and folders that determine the arrays. A change of one of them makes a new file.
    look
        Returns the arrays, and whether to store them.
    """
    try:
        key = _state(places)
        file = kept("listings") / f"{key}.npz" if key else None
    except (OSError, LaunchError):
        file = None
    if file is None:
        return look()[0]
    with FileLock(file.with_suffix(".lock")):
        with suppress(OSError, ValueError, EOFError, BadZipFile), file.open("rb") as content:
            stored = np.load(content)
            return {name: stored[name] for name in stored.files}
        arrays, worth = look()
        if worth:
            with suppress(OSError), replacing(file, sync=False) as out:  # the disk may be full
                np.savez(out, allow_pickle=False, **arrays)
        return arrays


def _state(places: Iterable[Path]) -> str | None:
    """Return a hash of the current state of `places`; None if one has changed just now."""
    digest, latest = hashlib.sha256(), 0.0
    for place in places:
        now = place.stat()
        state = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
        digest.update(os.fsencode(place) + b"\0" + repr(state).encode())
        latest = max(latest, now.st_mtime, now.st_ctime)
    return digest.hexdigest() if latest < time.time() - SETTLED_S else None
