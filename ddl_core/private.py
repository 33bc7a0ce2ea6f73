"""Folders that are this user's alone, or refused: also in a temporary directory that others share.

What lies in them is trusted: code that libraries have compiled and load again, sockets that take
commands. A folder at a known place that somebody else has made, may write to, or has put a link in
the place of, could hold anything.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from ddl_core.errors import LaunchError

# A site's folder for what libraries keep; in /tmp, each node has its own.
CACHES = "DDL_CACHES"
TEMPORARY = "DDL_TMPDIR"  # the temporary directory itself, where TMPDIR is a folder in it
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
MODE = 0o700
PREFIX = "p-"
# A socket's path may have 107 bytes, of which libraries add up to 32; a long TMPDIR (some clusters
# have one per job) leaves no room.
MAX_LENGTH = 40


def require(folder: Path) -> Path:
    """Make `folder` unless it is there; return it if it is this user's alone.

    Raises
    ------
    LaunchError
        If it cannot be made; or if it is a link, another user's, or open to others.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=MODE)
        found = folder.lstat()
    except OSError as error:
        raise LaunchError(
            f"cannot make the folder {folder}: {error.strerror}; free some space or make "
            f"{folder.parent} writable, or choose another temporary directory with TMPDIR"
        ) from None
    if fault := _fault(found):
        raise LaunchError(
            f"{folder} {fault}: programs load code from it, so it has to be a folder of this user "
            "alone (mode 0700). Remove it; or, if all in it is yours, run: chmod 700 "
            f"{folder}; or choose another place (TMPDIR, caches of the site's file)"
        )
    return folder


def _fault(found: os.stat_result) -> str | None:
    """Return why a folder is not trusted; None if it is."""
    if stat.S_ISLNK(found.st_mode):
        return "is a link"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, not to {os.geteuid()}"
    if found.st_mode & 0o077:
        return f"has mode {stat.S_IMODE(found.st_mode):04o}"
    return None


def kept(name: str) -> Path:
    """Return this user's folder `name` in the temporary directory, which later processes find.

    Raises
    ------
    LaunchError
        If there can be none; see `require`.
    """
    return require(require(_temporary() / _own()) / name)


def caches() -> Path:
    """Return the folder of what libraries compile here and load again: the site's, if it has one.

    Raises
    ------
    LaunchError
        If it is not this user's alone.
    """
    given = os.environ.get(CACHES)
    return require(Path(given)) if given else kept("caches")


def compiled() -> dict[str, str]:
    """Return the variable that tells torch's compiler where it keeps code, for processes of a run.

    What lies in the temporary directory itself is torch's own choice: a folder of a known name,
    which it makes when it is imported, or takes as it is.

    Raises
    ------
    LaunchError
        If the folder is not this user's alone.
    """
    given = Path(os.environ.get(COMPILED, "."))
    chosen = given.is_absolute() and given.parent not in (_temporary(), Path(tempfile.gettempdir()))
    return {COMPILED: str(given if chosen else require(caches() / "torchinductor"))}


def _temporary() -> Path:
    return Path(os.environ.get(TEMPORARY) or tempfile.gettempdir())


def _own() -> str:
    return f"ddl-{os.geteuid()}"


class Passing:
    """A private folder with a short name, until `cleanup` or the end of a ``with`` block.

    If this process is killed, the next one that makes such a folder removes it: a living owner
    holds it locked.

    Raises
    ------
    LaunchError
        If there can be none.
    """

    def __init__(self) -> None:
        place = _temporary()
        short = place if len(str(place)) <= MAX_LENGTH else Path("/tmp")
        base = require(short / _own())
        _remove_abandoned(base)
        path, held = _made(base)
        self.name = str(path)
        self._end = weakref.finalize(self, _remove, path, held, os.getpid())

    def cleanup(self) -> None:
        """Remove it, with all that is in it."""
        self._end()

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *reason: object) -> None:
        self.cleanup()


def _made(base: Path) -> tuple[Path, int]:
    """Return a new folder in `base`, and the descriptor that holds it locked."""
    while True:
        try:
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        except OSError as error:
            raise LaunchError(
                f"cannot make a folder in {base}: {error.strerror}; free some space, or choose "
                "another temporary directory with TMPDIR"
            ) from None
        # Who removes abandoned folders may come between: then it is locked, or gone.
        try:
            held, locked = _hold(path)
        except FileNotFoundError:
            continue
        if locked is not False and path.exists():
            return path, held
        os.close(held)


def _hold(path: Path) -> tuple[int, bool | None]:
    """Open a folder and lock it; the second value is None where the file system has no locks.

    Raises
    ------
    OSError
        If it cannot be opened.
    """
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return held, False
    except OSError:
        return held, None
    return held, True


def _remove_abandoned(base: Path) -> None:
    for path in base.glob(f"{PREFIX}*"):
        with suppress(OSError):  # its owner has just removed it
            held, locked = _hold(path)
            if locked:
                shutil.rmtree(path, ignore_errors=True)
            os.close(held)


def _remove(path: Path, held: int, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it, at its own end
        shutil.rmtree(path, ignore_errors=True)
        os.close(held)


def temporary_in(folder: str) -> dict[str, str]:
    """Return the variables by which `folder` is the temporary directory of other processes.

    Python and torch leave sockets in it when they are killed; `kept` goes on to find what it kept.
    """
    return {"TMPDIR": folder, TEMPORARY: str(_temporary())}
