"""What a node has found in a folder of the data, kept in its own temporary folder.

The first rank of a node looks; those that start with it wait for that, and later runs find it. At
1,024 ranks each would otherwise list ImageNet's 1.28 million names, or open 1,152 index files.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddl_core.errors import LaunchError
from ddl_core.private import kept
from ddl_core.records.storage import replacing

Arrays = tuple[NDArray[Any], ...]

FORMAT = 1  # of the file; another one has other keys
WORTH = 10_000  # fewer images or records are listed faster than anybody would notice
# A file system's clock may be coarse: what changed just now may change again at the same time.
SETTLED_S = 5.0


def once_per_node(
    places: Iterable[Path], look: Callable[[], Arrays], worth: Callable[[Arrays], bool]
) -> Arrays:
    """Return what `look` returns, from this node's memory if none of `places` has changed since.

    Parameters
    ----------
    places
        Files and folders on whose content the answer depends, in order. A folder changes when a
        name is added, removed or replaced in it.
    look
        Makes the answer.
    worth
        Says whether an answer may be kept, and is worth it.
    """
    try:
        key = _key(places)
        folder = kept("listings") if key else None
    except (OSError, LaunchError):
        folder = None
    if folder is None:
        return look()
    file = folder / f"{key}.npy"
    with suppress(OSError, ValueError):
        return _read(file)
    with _alone(file.with_suffix(".lock")):
        with suppress(OSError, ValueError):  # another rank has looked meanwhile
            return _read(file)
        found = look()
        if worth(found):
            with suppress(OSError), replacing(file, sync=False) as out:  # a full disk is no matter
                for array in (np.array(len(found)), *found):
                    np.save(out, array, allow_pickle=False)
        return found


def _key(places: Iterable[Path]) -> str | None:
    """Return what stands for `places` as they are now; None if one has changed just now."""
    digest, latest = hashlib.sha256(str(FORMAT).encode()), 0.0
    for place in places:
        now = place.stat()
        state = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
        digest.update(os.fsencode(place) + b"\0" + repr(state).encode())
        latest = max(latest, now.st_mtime, now.st_ctime)
    return digest.hexdigest() if latest < time.time() - SETTLED_S else None


def _read(file: Path) -> Arrays:
    with file.open("rb") as content:
        count = int(np.load(content, allow_pickle=False))
        return tuple(np.load(content, allow_pickle=False) for _ in range(count))


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Wait until no other process of this node is inside; where it cannot be known, do not."""
    try:
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        lock.unlink(missing_ok=True)  # who waits for it has it open, and then finds the answer
        os.close(descriptor)
