"""One measurement at a time on a machine: two would slow each other, and no record would say so.

The lock is a file that all users of the machine find at the same place. The system frees it when
its holder dies. Processes that a holder starts (a study's notebooks, their ranks) measure under it.
Inside a SLURM job nobody waits: SLURM has granted the cores, and the job's time runs.
"""

import fcntl
import getpass
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ddl_core.errors import LaunchError
from ddl_core.launch.commands import Allocation
from ddl_core.records.storage import now

LOCK = "DDL_MEASURING_LOCK"  # another file than the machine's, for who must not wait: tests
HELD = "DDL_MEASURING"  # set where this process, or the one that started it, holds the lock
# In memory: the same for all users whatever TMPDIR is, and gone with the next start of the machine.
PLACES = (Path("/dev/shm"), Path("/tmp"))
NAME = "ddl-measuring.lock"
POLL_S = 0.5
MOST_BYTES = 1000  # of what a holder says of itself
UNKNOWN = "a process that does not say which"


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Measure `what` in a ``with`` block while nobody else on this machine does; wait for that.

    Whoever waits says on standard error for whom.

    Raises
    ------
    LaunchError
        If the file to lock cannot be used.
    """
    if HELD in os.environ:
        yield
        return
    descriptor = _acquire(what, patient=Allocation.current() is None)
    os.environ[HELD] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(HELD, None)
        if descriptor is not None:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)


def lock_file() -> Path:
    """Return the file: the machine's, or what ``DDL_MEASURING_LOCK`` says."""
    given = os.environ.get(LOCK)
    return Path(given) if given else next(one for one in PLACES if one.is_dir()) / NAME


def _acquire(what: str, patient: bool) -> int | None:
    """Return the descriptor that holds the lock; None if somebody else does and not `patient`."""
    path, told = lock_file(), ""
    while True:
        descriptor = _open(path)
        if _lock(descriptor):
            if _is_still(path, descriptor):
                _say_who(descriptor, what)
                return descriptor
            os.close(descriptor)
            continue
        holder = _holder(descriptor)
        os.close(descriptor)
        if holder != told:
            told = holder
            sys.stderr.write(_text(what, holder, path, patient))
            sys.stderr.flush()
        if not patient:
            return None
        time.sleep(POLL_S)


def _text(what: str, holder: str, path: Path, patient: bool) -> str:
    both = f"{holder} measures on this machine (it holds {path}), and two would slow each other"
    if patient:
        return f"{what} waits: {both}\n"
    return f"warning: {what} does not wait in a SLURM job, but {both}: ask for nodes of your own\n"


def _open(path: Path) -> int:
    """Open the file, made by whoever measures first; write to it where that is allowed.

    Raises
    ------
    LaunchError
        If it is a link or no plain file, or cannot be opened.
    """
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with suppress(FileExistsError):
            created = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | flags, 0o666)
            os.fchmod(created, 0o666)  # whatever the umask is: other users are to say who they are
            os.close(created)
        try:
            found = os.open(path, os.O_RDWR | flags)
        except PermissionError:
            found = os.open(path, os.O_RDONLY | flags)  # enough to lock it
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None
    state = os.fstat(found)
    if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
        os.close(found)
        raise _unusable(path, "not a plain file, or with a second name")
    return found


def _unusable(path: Path, reason: str) -> LaunchError:
    return LaunchError(
        f"cannot lock this machine for measuring by {path}: {reason}; remove it, or name another "
        f"file in {LOCK} (then nothing keeps other measurements of this machine away)"
    )


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, descriptor: int) -> bool:
    """Say whether others would find the file that was locked: it may have been removed."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False


def _say_who(descriptor: int, what: str) -> None:
    with suppress(OSError):  # another user's file
        text = json.dumps({"what": what, "pid": os.getpid(), "user": _user(), "since": now()})
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        return str(os.geteuid())


def _holder(descriptor: int) -> str:
    """Return who holds the lock, by its own words."""
    try:
        told = json.loads(os.pread(descriptor, MOST_BYTES, 0))
        text = "{what} (process {pid} of {user}, since {since})".format(**told)
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN
    return "".join(letter for letter in text if letter.isprintable())
