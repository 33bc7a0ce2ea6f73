"""One measurement at a time on a machine: two would slow each other, and no record would say so.

The lock is one file for all users of the machine; the system frees it when its holder dies.
Processes that a holder starts measure under it. Inside a SLURM job nobody waits.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from ddl_core.errors import LaunchError
from ddl_tools.launch.commands import Allocation
from ddl_tools.records.storage import now

LOCK = "DDL_MEASURING_LOCK"  # names another file than the machine's
HELD = "DDL_MEASURING"  # set where this process, or the one that started it, holds the lock
# In memory: the same for all users whatever TMPDIR is, and gone with the next start of the machine.
PLACES = (Path("/dev/shm"), Path("/tmp"))
NAME = "ddl-measuring.lock"
POLL_S = 0.5


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Measure `what` in a ``with`` block; wait until nobody else on this machine measures."""
    if HELD in os.environ:
        yield
        return
    given = os.environ.get(LOCK)
    path = Path(given) if given else next(one for one in PLACES if one.is_dir()) / NAME
    lock = FileLock(path, mode=0o666, poll_interval=POLL_S)  # whatever the umask is: for all users
    try:
        with suppress(Timeout):
            lock.acquire(blocking=False)
        if not lock.is_locked:
            waits = Allocation.current() is None
            sys.stderr.write(_text(what, path, waits))
            sys.stderr.flush()
            if waits:
                lock.acquire()
    except OSError as error:
        raise LaunchError(
            f"cannot lock this machine for measuring by {path}: {error.strerror or error}; remove "
            f"it, or name another file in {LOCK} (then nothing keeps other measurements of this "
            "machine away)"
        ) from None
    if lock.is_locked:
        user = psutil.Process().username()
        _name_holder(path, f"{what} (process {os.getpid()} of {user}, since {now()})")
    os.environ[HELD] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(HELD, None)
        if lock.is_locked:
            _name_holder(path, "")
            lock.release()


def _text(what: str, path: Path, waits: bool) -> str:
    holder = ""
    with suppress(OSError, UnicodeError):
        holder = "".join(letter for letter in path.read_text()[:1000] if letter.isprintable())
    both = (
        f"{holder or 'another process'} measures on this machine (it holds {path}), and two would "
        "slow each other"
    )
    if waits:
        return f"{what} waits: {both}\n"
    return f"warning: {what} does not wait in a SLURM job, but {both}: ask for nodes of your own\n"


def _name_holder(path: Path, text: str) -> None:
    with suppress(OSError), path.open("r+", encoding="utf-8") as file:  # it may be another user's
        file.truncate()
        file.write(text)
