"""What a rank asks of its system: folders that are this user's alone, and to end with its parent.

Programs trust the content of such a folder: code that libraries have compiled and load again,
sockets that take commands. What is another user's, or open to others, is refused.
"""

import ctypes
import os
import shutil
import signal
import stat
import sys
import tempfile
import weakref
from pathlib import Path

from ddl_core.errors import LaunchError

# A site's folder for what libraries keep; in /tmp, each node has its own.
CACHES = "DDL_CACHES"
TEMPORARY = "DDL_TMPDIR"  # the temporary directory itself, where TMPDIR is a folder in it
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
# Where ranks ask for their turn, if the arms of their study measure in turns.
TURNS = "DDL_TURNS"
PR_SET_PDEATHSIG = 1  # prctl(2)
PREFIX = "p-"
# A socket's path may have 107 bytes, of which libraries add up to 32; a long TMPDIR (some clusters
# have one per job) leaves no room.
MAX_LENGTH = 40


def require(folder: Path) -> Path:
    """Make `folder` unless it is there; return it if it is this user's alone.

    `LaunchError` if it is a link, another user's, or open to others.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise _cannot_make(folder, error) from None
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not own or found.st_mode & 0o077:
        raise LaunchError(
            f"{folder} ({stat.filemode(found.st_mode)} of user {found.st_uid}) is not a folder of "
            f"user {os.geteuid()} alone (mode 0700), and programs load code from it",
            remedy=f"remove it, or run: chmod 700 {folder}",
        )
    return folder


def _cannot_make(folder: Path, error: OSError) -> LaunchError:
    return LaunchError(
        f"cannot make the folder {folder}: {error.strerror}",
        remedy=f"free some space or make {folder.parent} writable, or choose another temporary "
        "directory with TMPDIR",
    )


def kept(name: str) -> Path:
    """Return this user's folder `name` in the temporary directory, which later processes find."""
    return require(require(_temporary() / _own()) / name)


def caches() -> Path:
    """Return the folder of what libraries compile and load again: the site's, if it has one."""
    given = os.environ.get(CACHES)
    return require(Path(given)) if given else kept("caches")


def compiled() -> dict[str, str]:
    """Return the variable that tells torch's compiler where it keeps code, for processes of a run.

    What lies in the temporary directory itself is torch's own choice: a folder of a known name,
    which it makes when it is imported, or takes as it is.
    """
    given = Path(os.environ.get(COMPILED, "."))
    chosen = given.is_absolute() and given.parent not in (_temporary(), Path(tempfile.gettempdir()))
    return {COMPILED: str(given if chosen else require(caches() / "torchinductor"))}


def _temporary() -> Path:
    return Path(os.environ.get(TEMPORARY) or tempfile.gettempdir())


def _own() -> str:
    return f"ddl-{os.geteuid()}"


class Passing:
    """A private folder with a short name, until `cleanup` or the end of a ``with`` block."""

    def __init__(self) -> None:
        place = _temporary()
        base = require((place if len(str(place)) <= MAX_LENGTH else Path("/tmp")) / _own())
        try:
            self.name = tempfile.mkdtemp(prefix=PREFIX, dir=base)
        except OSError as error:
            raise _cannot_make(base / PREFIX, error) from None
        self._end = weakref.finalize(self, _remove, self.name, os.getpid())

    def cleanup(self) -> None:
        """Remove it, with all that is in it."""
        self._end()

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *reason: object) -> None:
        self.cleanup()


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it, at its own end
        shutil.rmtree(path, ignore_errors=True)


def temporary_in(folder: str) -> dict[str, str]:
    """Return the variables by which `folder` is the temporary directory of other processes.

    Python and torch leave sockets in it when they are killed; `kept` goes on to find what it kept.
    """
    return {"TMPDIR": folder, TEMPORARY: str(_temporary())}


def die_with_parent(parent: int | None = None, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask Linux to end this process by signal `number` as soon as its parent is gone.

    Of a parent that was gone before, Linux says nothing; `parent` is its process id, where known.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), number)
