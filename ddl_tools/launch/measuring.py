"""One measurement at a time on a machine: two would slow each other, and no record would say so.

The lock is one file for all users of the machine; the system frees it when its holder dies. Nothing
is written into the file, and the system names the holder: what has the name of the file may be
another user's. Processes that a holder starts measure under it. Inside a SLURM job nobody waits.
"""

import os
import pwd
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from ddl_core.errors import LaunchError
from ddl_core.files import replacing
from ddl_core.system import kept
from ddl_tools import limits
from ddl_tools.launch.commands import Allocation

LOCK = "DDL_MEASURING_LOCK"  # names another file than the machine's
HELD = "DDL_MEASURING"  # set where this process, or the one that started it, holds the lock
# In memory: the same for all users whatever TMPDIR is, and gone with the next start of the machine.
PLACES = (Path("/dev/shm"), Path("/tmp"))
NAME = "ddl-measuring.lock"
POLL_S = 0.5
KEPT_S = 3600.0  # of a speed
LOCKS = Path("/proc/locks")


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Measure `what` in a ``with`` block; wait until nobody else on this machine measures."""
    if HELD in os.environ:
        yield
        return
    given = os.environ.get(LOCK)
    path = Path(given) if given else next(one for one in PLACES if one.is_dir()) / NAME
    _check(path)
    # The mode is for all users, whatever the umask is. No link is followed, and no content changed.
    lock = FileLock(path, mode=0o666, poll_interval=POLL_S)
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
        raise _refusal(path, error.strerror or str(error)) from None
    os.environ[HELD] = str(os.getpid())
    known = limits.known_speed() is not None
    try:
        if not known:
            os.environ[limits.SPEED] = f"{_speed():.0f}"
        yield
    finally:
        os.environ.pop(HELD, None)
        if not known:
            os.environ.pop(limits.SPEED, None)
        lock.release()


def _speed() -> float:
    """Return the speed of this machine, which it keeps for an hour."""
    file = None
    with suppress(OSError, ValueError, LaunchError):
        file = kept("speed") / f"{limits.whole_cores()}_cores.txt"
        if file.stat().st_mtime > time.time() - KEPT_S:
            return float(file.read_text(encoding="ascii"))
    found = limits.speed()
    if file:
        with suppress(OSError), replacing(file, sync=False) as out:
            out.write(f"{found:.0f}".encode())
    return found


def _check(path: Path) -> None:
    """Refuse a link, a pipe or a device: opening one could change a file, or wait for ever."""
    found = _found(path)
    if found and not stat.S_ISREG(found.st_mode):
        raise _refusal(path, "it is no regular file")


def _found(path: Path) -> os.stat_result | None:
    with suppress(OSError):
        return path.lstat()
    return None


def _refusal(path: Path, reason: str) -> LaunchError:
    found = _found(path)
    owner, remedy = "", f"name another file in {LOCK}"
    remedy += " (then nothing keeps other measurements of this machine away)"
    if found and found.st_uid == os.geteuid():
        remedy += ", or remove it"
    elif found:
        user = _user(found.st_uid)
        owner = f", which belongs to {user}"
        remedy += f", or let {user} remove it"
    what = f"cannot lock this machine for measuring by {path}{owner}: {reason}"
    return LaunchError(what, remedy=remedy)


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


def _text(what: str, path: Path, waits: bool) -> str:
    both = (
        f"{_holder(path)} measures on this machine (it holds {path}), and two would slow each other"
    )
    if waits:
        return f"{what} waits: {both}\n"
    return f"warning: {what} does not wait in a SLURM job, but {both}: ask for nodes of your own\n"


def _holder(path: Path) -> str:
    """Name the process that holds the lock, from the locks that the system lists."""
    with suppress(OSError, ValueError, psutil.Error):
        found = path.lstat()
        device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
        for line in LOCKS.read_text(encoding="ascii").splitlines():
            match line.split():  # of a process that waits, the second word is an arrow
                case [_, "FLOCK", _, _, pid, file, *_] if file == f"{device}:{found.st_ino}":
                    process = psutil.Process(int(pid))
                    since = datetime.fromtimestamp(process.create_time(), UTC)
                    started = f"started {since:%Y-%m-%dT%H:%M:%SZ}"
                    return f"process {pid} of user {process.username()} ({started})"
    return "another process"
