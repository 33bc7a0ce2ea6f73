"""Files: which are opened, written whole, or read uncached; how messages show a user's values."""

import errno
import fcntl
import os
import reprlib
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, get_args

from filelock import BaseFileLock, FileLock, SoftFileLock
from pydantic import BaseModel, ValidationError

from ddl_core.errors import RecordError
from ddl_core.spelling import choices

MOST_PROBLEMS = 20  # that one message lists
NAMED = 5  # of many, that one message names
# What a file system answers that has no locks (flock), or has lost the server of its locks.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
JOB_LOG = "slurm-*.log"  # one of several runs in a job links to that of the first run

_roots: set[Path] = set()
_places = ["with --results DIR or DDL_RESULTS"]  # the last one counts

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


class LinkError(OSError):
    """A symbolic link below a root."""


def as_root(path: Path) -> Path:
    """Let a folder be a root: it and all above it may be links; below it, none is followed."""
    _roots.update((Path(os.path.abspath(path)), path.resolve()))  # noqa: PTH100
    return path


def refuse_links(path: Path | str) -> None:
    """Raise `LinkError` if a path, or a folder between it and its root, is a symbolic link.

    A path that lies below no root is the user's own choice, and may be one.
    """
    whole = Path(os.path.abspath(path))  # noqa: PTH100
    for root in whole.parents:
        if root in _roots:
            break
    else:
        return
    for part in (*reversed(whole.parents[: whole.parents.index(root)]), whole):
        if part.is_symlink():
            raise _link_error(part)


def is_there(path: Path) -> bool:
    """Say whether something has this name, without a look at what a link leads to.

    True where that cannot be known: whoever reads it, names the reason.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def refuse_odd_files(folder: Path) -> None:
    """Raise `OSError` if a folder of a run holds a link, but for those of job logs, or a device."""
    refuse_links(folder)
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            if not path.is_symlink():
                if path.name in names:
                    require_file(path)
            elif job_log(path) == path:
                raise _link_error(path)


def job_log(path: Path) -> Path:
    """Return the log that a link of the launcher leads to; of any other path, itself."""
    if not (path.match(JOB_LOG) and path.is_symlink()):
        return path
    match path.readlink().parts:
        case ("..", "..", run, "logs", path.name) if run != "..":
            return path.parents[2] / run / "logs" / path.name
    return path


def _link_error(link: Path) -> LinkError:
    text = (
        f"{link} is a symbolic link to {link.readlink()}; none is followed below a folder of "
        "results or figures. Replace it by what it leads to"
    )
    return LinkError(errno.ELOOP, text, os.fspath(link))


def open_plain(path: Path | str, most: int | None = None) -> BinaryIO:
    """Open a plain file of at most `most` bytes to be read; `OSError` for anything else.

    Nothing is followed below a root, and nothing waits: see `refuse_links` and `require_file`.
    """
    refuse_links(path)
    require_file(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    size = os.fstat(descriptor).st_size
    if most is not None and size > most:
        file.close()
        raise _too_large(path, most)
    return file


def read_plain(path: Path | str, most: int) -> bytes:
    """Return the content of a plain file; errors as of `open_plain`."""
    with open_plain(path, most) as file:
        content = file.read(most + 1)  # of a file that grows, or whose size is not its own
    if len(content) > most:
        raise _too_large(path, most)
    return content


def _too_large(path: Path | str, most: int) -> OSError:
    text = f"it is larger than {most / 1e6:g} MB, the most that is read"
    return OSError(errno.EFBIG, text, os.fspath(path))


def open_to_append(path: Path) -> BinaryIO:
    """Open a plain file, or a new one, to read it and to add to it.

    One that has further names (hard links) is replaced by a copy: the others keep their content.
    """
    refuse_links(path)
    if path.exists():
        require_file(path)
        if path.stat().st_nlink > 1:
            content = path.read_bytes()
            with replacing(path) as copy:
                copy.write(content)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "a+b")


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
        field = ".".join(map(str, problem["loc"]))
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            *place, name = problem["loc"]
            known = fields or _model_at(model, place).model_fields
            text = f"unknown field; {choices(str(name), known)}"
        value = problem.get("input")
        given = "" if isinstance(value, dict | BaseModel) else f" = {shown(value)}"
        head = f"{field or model.__name__}{given}: " if field or given else ""
        lines += [f"  {head}{line}" for line in text.splitlines()]
    if len(problems) > MOST_PROBLEMS:
        lines.append(f"  and {len(problems) - MOST_PROBLEMS} more")
    return "\n".join(lines)


def _model_at(model: type[BaseModel], place: Iterable[int | str]) -> type[BaseModel]:
    """Return the model of a part within a model, as errors name its place."""
    for part in place:
        field = model.model_fields.get(str(part))
        kinds = (field.annotation, *get_args(field.annotation)) if field else ()
        model = next((one for one in kinds if _is_model(one)), model)
    return model


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


@contextmanager
def replacing(path: Path, *, sync: bool = True, part: Path | None = None) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when all is written; with `sync` it outlives a power cut."""
    own = part or path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with own.open("wb" if part else "xb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        own.replace(path)
        if sync:
            _sync(path.parent)  # else the old file may be back
    except BaseException:
        with suppress(OSError):  # of a folder that is not writable: then nothing was left there
            own.unlink(missing_ok=True)
        raise


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system that cannot do this for folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing_to(place: str) -> Iterator[None]:
    """Let errors in a ``with`` block say how to choose another place: "with --to DIR".

    Empty if nothing chooses it.
    """
    _places.append(place)
    try:
        yield
    finally:
        _places.pop()


def or_elsewhere(advice: str = "") -> str:
    """Return advice of what to do when a file cannot be written, or to choose another place."""
    place = _places[-1] and f"choose another place {_places[-1]}"
    return ", or ".join(part for part in (advice, place) if part)


def write_advice(error: OSError) -> str:
    """Return what to do after an error of writing."""
    advice = ""
    if error.errno in NO_SPACE:
        advice = "free some space"
    elif error.errno in DENIED:
        advice = "make the folder writable"
    return or_elsewhere(advice)


def cannot_write(path: Path, error: OSError) -> RecordError:
    """Return the error that says what to do when `path` cannot be written."""
    text = f"cannot write {path}: {error.strerror}"
    if isinstance(error, LinkError):
        return RecordError(or_elsewhere(text))
    return RecordError(text, remedy=write_advice(error))


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
