"""Folders that are this user's alone, for what programs trust; a process that ends with its parent.

Libraries load code again that they have compiled, and sockets take commands.
"""

import ctypes
import os
import signal
import stat
import sys
import tempfile
from pathlib import Path

from ddl_core.errors import LaunchError

TEMPORARY = "DDL_TMPDIR"  # the temporary directory itself, where TMPDIR is a folder in it
# Address at which interleaved ranks ask when to measure.
INTERLEAVED = "DDL_INTERLEAVED"
PR_SET_PDEATHSIG = 1  # prctl(2)


def require(folder: Path) -> Path:
    """Make `folder` unless it is there; return it if it is this user's alone.

    `LaunchError` if it is a link, another user's, or open to others.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise cannot_make(folder, error) from None
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not mine or found.st_mode & 0o077:
        raise LaunchError(
            f"{folder} ({stat.filemode(found.st_mode)} of user {found.st_uid}) is not a folder of "
            f"user {os.geteuid()} alone (mode 0700), and programs load code from it",
            remedy=f"remove it, or run: chmod 700 {folder}",
        )
    return folder


def cannot_make(folder: Path, error: OSError) -> LaunchError:
    """Return the error that says what to do when `folder` cannot be made."""
    return LaunchError(
        f"cannot make the folder {folder}: {error.strerror}",
        remedy=f"free some space or make {folder.parent} writable, or choose another temporary "
        "directory with TMPDIR",
    )


def kept(name: str) -> Path:
    """Return this user's folder `name` in the temporary directory, which later processes find."""
    return require(own(temporary()) / name)


def temporary() -> Path:
    """Return the temporary directory, also where the processes of a run have one of their own."""
    return Path(os.environ.get(TEMPORARY) or tempfile.gettempdir())


def own(folder: Path) -> Path:
    """Return this user's folder in another."""
    return require(folder / f"ddl-{os.geteuid()}")


def die_with_parent(parent: int | None = None, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask Linux to end this process by signal `number` as soon as its parent is gone.

    `parent` is its process id, where known: Linux does not notice one that was gone before.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), number)
