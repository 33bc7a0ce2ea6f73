"""Files that are written whole or read uncached; how messages show what a user hands in."""

import errno
import fcntl
import os
import reprlib
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import BaseFileLock, FileLock, SoftFileLock
from pydantic import BaseModel, ValidationError

from ddl_core.errors import RecordError

MOST_PROBLEMS = 20  # that one message lists
NAMED = 5  # of many, that one message names
# What a file system answers that has no locks (flock), or has lost the server of its locks.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 100
_short.maxlong = 40
_short.maxlevel = 3


def shown(value: object) -> str:
    """Return a value for a message: on one line, and its middle left out where it is long."""
    return _short.repr(value)


def some(texts: Sequence[str], separator: str = ", ", more: int = 0) -> str:
    """Return the first few texts as one, and how many more there are, with `more` not given."""
    first, more = separator.join(texts[:NAMED]), more + max(0, len(texts) - NAMED)
    return f"{first} and {more} more" if more else first


def require_file(path: Path | str) -> None:
    """Raise `OSError` unless a path is a plain file: a fifo would wait, a device has no end."""
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise OSError(None, "it is not a plain file", os.fspath(path))


def drop_cached(paths: Iterable[str]) -> None:
    """Let the system forget what it keeps of some files; what is not on the disk yet stays."""
    for path in paths:
        with suppress(OSError):  # a loader that cannot read it says so
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def describe(
    error: ValidationError, model: type[BaseModel], fields: Iterable[str] | None = None
) -> str:
    """Return one line per problem: field, value, what is allowed; by default the model's fields."""
    lines = []
    problems = error.errors()
    for problem in problems[:MOST_PROBLEMS]:
        field = ".".join(map(str, problem["loc"])) or model.__name__
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            text = f"unknown field; choose from: {', '.join(sorted(fields or model.model_fields))}"
        value = problem.get("input")
        given = "" if isinstance(value, dict | BaseModel) else f" = {shown(value)}"
        lines.append(f"  {field}{given}: {text}")
    if len(problems) > MOST_PROBLEMS:
        lines.append(f"  and {len(problems) - MOST_PROBLEMS} more")
    return "\n".join(lines)


@contextmanager
def replacing(path: Path, *, sync: bool = True, part: Path | None = None) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when all is written; with `sync` it outlives a power cut."""
    part = part or path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):  # of a folder that is not writable: then nothing was left there
            part.unlink(missing_ok=True)
        raise


def cannot_write(path: Path, error: OSError) -> RecordError:
    """Return the error that says what to do when `path` cannot be written."""
    advice = ""
    if error.errno in NO_SPACE:
        advice = "free some space, or "
    elif error.errno in DENIED:
        advice = "make the folder writable, or "
    return RecordError(
        f"cannot write {path}: {error.strerror}",
        remedy=f"{advice}choose another place with --results DIR or DDL_RESULTS",
    )


def acquire(path: Path, timeout: float) -> BaseFileLock:
    """Lock a file; on a file system without locks, the file itself is the lock while it exists.

    `filelock.Timeout` if another process holds it longer than `timeout` seconds.
    """
    try:
        path.open("x").close()
        made = True
    except FileExistsError:
        made = False
    guard: BaseFileLock = FileLock(path, timeout=timeout)
    if _refused(path) in NO_LOCKS:
        if made:
            path.unlink(missing_ok=True)
        guard = SoftFileLock(path, timeout=timeout)
    guard.acquire()
    return guard


def is_held(path: Path) -> bool | None:
    """Say whether a process holds the lock `path`; None if that cannot be known.

    Only permission to read is needed.
    """
    refused = _refused(path)
    if refused in (0, errno.ENOENT, errno.ENOTDIR):
        return False
    if refused == errno.EWOULDBLOCK:
        return True
    with suppress(OSError):
        if refused in NO_LOCKS:
            return path.stat().st_size > 0  # who holds it is written in it
    return None


def _refused(lock: Path) -> int:
    """Return the number of the error with which a shared lock is refused; 0 if it is given."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.errno or errno.EIO
    return 0
