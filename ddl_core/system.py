"""Folders that are this user's alone, for what programs trust; a machine's name; ends of processes.

Libraries load code again that they have compiled, and sockets take commands.
"""

import atexit
import ctypes
import os
import shutil
import signal
import socket
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
    mine = found.st_uid == os.geteuid()
    if not mine or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        remedy = f"remove it, or run: chmod 700 {folder}"
        if not mine:  # nobody may remove another's from a temporary directory
            remedy = f"let user {found.st_uid} remove it, or name another folder"
        raise LaunchError(
            f"{folder} ({stat.filemode(found.st_mode)} of user {found.st_uid}) is not a folder of "
            f"user {os.geteuid()} alone (mode 0700), and programs load code from it",
            remedy=remedy,
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
    """Return this user's folder in another.

    If another user has taken its name, it is in the folder that the system gives this user alone;
    else it is a new one, which ends with this process, and which its children find.
    """
    name = f"ddl-{os.geteuid()}"
    if not _is_anothers(folder / name):
        return require(folder / name)
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and os.access(given, os.W_OK) and not _is_anothers(Path(given, name)):
        return require(Path(given, name))
    try:
        made = tempfile.mkdtemp(prefix="ddl-", dir=folder)
    except OSError as error:
        raise cannot_make(folder / name, error) from None
    os.environ[TEMPORARY] = made
    atexit.register(_remove, made, os.getpid())
    return require(Path(made, name))


def _is_anothers(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid != os.geteuid()
    except OSError:
        return False


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # no fork of it
        shutil.rmtree(folder, ignore_errors=True)


def die_with_parent(parent: int | None = None, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask Linux to end this process by signal `number` as soon as its parent is gone.

    `parent` is its process id, where known: Linux does not notice one that was gone before.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), number)


def check_host_name() -> None:
    """Raise `LaunchError` if nothing resolves this machine's name: Horovod's Gloo would crash."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        raise LaunchError(
            f"nothing resolves this machine's name {name!r}, and Horovod crashes on such a machine",
            remedy=f"add the line `127.0.1.1 {name}` to /etc/hosts, or use another strategy",
            category="environment",
        ) from None
