"""What everything that fills a folder needs: nobody beside it, and errors a user can act on."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from ddl_core.errors import DataError


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold the lock of a folder that is being made; wait for another process, and say so."""
    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        tqdm.write(f"another process is making {lock.parent}: waiting for it")
        held.acquire()
    try:
        yield
    finally:
        held.release()


@contextmanager
def explained(what: str, size: float) -> Iterator[None]:
    """Turn what the system says about files into what a user can do.

    Parameters
    ----------
    what
        Such as ``make the sample set in /data``.
    size
        Bytes that this takes.
    """
    need = f"the set needs {size / 1e6:,.0f} MB"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = f"{need}: free some space, or choose a folder on another disk"
        else:
            advice = f"{need} in a folder that you may write to: choose another one"
        reason = error.strerror or str(error)
        raise DataError(f"cannot {what}: {reason}; {advice}") from error


def require_space(folder: Path, size: float) -> None:
    """Raise the system's error for a full disk before the disk is full."""
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, "not enough free space", os.fspath(folder))
