"""Processes that do not outlive their run, however the caller ends."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import psutil

from ddl_core.system import TEMPORARY, cannot_make, kept, own, require, temporary

HOME = Path(__file__).resolve().parents[1]

# Every process of a run inherits this variable. Process groups would not do: a process may make a
# session of its own, and one whose parent was killed has a new parent.
TOKEN = "DDL_RUN_TOKEN"
MOST_OPEN_FILES = 65_536  # some programs close every number up to their limit, one by one
PATIENCE_S = 20.0
# A site's folder for what libraries keep; in /tmp, each node has its own.
CACHES = "DDL_CACHES"
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
# A socket's path may have 107 bytes, of which libraries add up to 32; a long TMPDIR (some clusters
# have one per job) leaves no room.
MAX_LENGTH = 40
PREFIX = "p-"  # of such a folder
# Keeps the current folder, which may be a stranger's, out of the `sys.path` of Python processes.
# Python takes any text; this one tells our variable from one that the user has set.
SAFE_PATH, OURS = "PYTHONSAFEPATH", "ddl"

# Asks the system to send SIGTERM when the parent dies, then becomes the command. Popen's preexec_fn
# may deadlock in a process with threads, as a notebook kernel is.
LEASH = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent died first")
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot start {sys.argv[2]}: {error.strerror}")
"""


def start(
    command: Sequence[str],
    *,
    token: str,
    log: Path,
    environment: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, its output in `log`, to die with its parent.

    The caller's thread counts as the parent: the process gets SIGTERM when that thread ends.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LEASH, str(os.getpid()), *command],
            env={**environment, TOKEN: token},
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def import_path() -> str:
    """Return a ``PYTHONPATH`` with this package, so that a checkout need not be installed.

    An empty item of the user's would be the current folder, and is left out.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(HOME), *filter(None, given)])


def imports() -> dict[str, str]:
    """Return the variables by which Python processes of ours find modules.

    What the user starts may import what lies beside it: see `users_environment`.
    """
    return {"PYTHONPATH": import_path(), SAFE_PATH: OURS}


@contextmanager
def safe_imports() -> Iterator[None]:
    """Let Python processes that start meanwhile import nothing from the current folder.

    That includes processes that libraries start, such as those of `multiprocessing`.
    """
    if os.environ.get(SAFE_PATH):
        yield
        return
    os.environ[SAFE_PATH] = OURS
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH, None)


def users_environment() -> dict[str, str]:
    """Return the environment for programs of the user, without the effect of `safe_imports`."""
    own = os.environ.get(SAFE_PATH) == OURS
    return {name: value for name, value in os.environ.items() if not own or name != SAFE_PATH}


def inherited() -> dict[str, str]:
    """Return the environment without the ``RANK`` that a shell may have."""
    return {name: value for name, value in os.environ.items() if name != "RANK"}


def carrying(token: str) -> list[psutil.Process]:
    """Return the living processes that inherited `token`."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(TOKEN) == token:
                found.append(process)
    return found


def of_ranks(token: str) -> list[psutil.Process]:
    """Return the ranks that inherited `token`, and what they started."""
    found = []
    for process in carrying(token):
        with suppress(psutil.Error):
            if "RANK" in process.environ():
                found.append(process)
    return found


def busy_seconds(cores: Iterable[int]) -> float:
    """Return the seconds that some cores have worked for any program, since the system started."""
    times = psutil.cpu_times(percpu=True)
    return sum(sum(times[core][:8]) - times[core].idle - times[core].iowait for core in cores)


def memory_bytes(of: Iterable[psutil.Process]) -> int:
    """Return the main memory that processes hold; a page that several share counts once.

    Of a process that does not let this user see what it shares, all of its pages count.
    """
    total = 0
    for process in of:
        with suppress(psutil.Error):
            try:
                total += process.memory_full_info().pss
            except psutil.AccessDenied:
                total += process.memory_info().rss
    return total


def freeze(token: str) -> list[psutil.Process]:
    """Stop the ranks that inherited `token`, and what they started, until `thaw`; return them.

    Repeated until nothing new is found: a process that is stopped late may start another one.
    """
    stopped: dict[int, psutil.Process] = {}
    while found := [one for one in of_ranks(token) if one.pid not in stopped]:
        for process in found:
            stopped[process.pid] = process
            with suppress(psutil.Error):
                process.suspend()
    return list(stopped.values())


def thaw(stopped: Iterable[psutil.Process]) -> None:
    """Let processes go on, unless they have ended meanwhile."""
    for process in stopped:
        with suppress(psutil.Error):
            process.resume()


def end_all(token: str, patience_s: float = PATIENCE_S) -> list[int]:
    """Kill every process that inherited `token`; return those that are left even so.

    Repeated until none is left, because a process may start another one meanwhile.
    """
    deadline = time.monotonic() + patience_s
    while found := carrying(token):
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)
        if time.monotonic() > deadline:
            return [process.pid for process in carrying(token)]
    return []


def oom_kills(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes the system has ended because memory ran out; 0 if unknown.

    Those of this process's control group, its job or session; else those of the whole machine.
    """
    try:
        lines = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
        own = next((line[3:] for line in lines if line.startswith("0::")), "")
        text = (groups / own.strip("/") / "memory.events").read_text(encoding="utf-8")
    except OSError:
        try:
            text = (proc / "vmstat").read_text(encoding="utf-8")
        except OSError:
            return 0
    rows = (line.split() for line in text.splitlines())
    return next((int(row[1]) for row in rows if row[0] == "oom_kill"), 0)


@contextmanager
def stoppable(*others: signal.Signals) -> Iterator[None]:
    """Turn SIGTERM, SIGHUP and `others` into `KeyboardInterrupt`: one path cleans up after all."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    with _handlers((signal.SIGTERM, signal.SIGHUP, *others), stop):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore signals that would interrupt a clean-up."""
    with _handlers((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a block come to its end before a signal interrupts."""
    came: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with _handlers(signals, lambda number, frame: came.append(number)):
        yield
    if came:
        raise KeyboardInterrupt(signal.Signals(came[0]).name)


@contextmanager
def _handlers(
    signals: Sequence[signal.Signals],
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it is interrupted
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def allow_open_files() -> None:
    """Raise the limit of open files, 1,024 on most systems: sets have more shards than that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Passing:
    """A private folder with a short name, until `cleanup` or the end of a ``with`` block."""

    def __init__(self) -> None:
        place = temporary()
        base = own(place if len(str(place)) <= MAX_LENGTH else Path("/tmp"))
        try:
            self.name = tempfile.mkdtemp(prefix=PREFIX, dir=base)
        except OSError as error:
            raise cannot_make(base, error) from None
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

    Python and torch leave sockets in it when they are killed. `ddl_core.system.kept` still finds
    what it kept.
    """
    return {"TMPDIR": folder, TEMPORARY: str(temporary())}


def caches() -> Path:
    """Return the folder of what libraries compile and load again: the site's, if it has one."""
    given = os.environ.get(CACHES)
    return require(Path(given)) if given else kept("caches")


def compiled() -> dict[str, str]:
    """Return the variable that tells torch's compiler where it keeps code.

    A folder in the temporary directory itself is torch's own choice, whose name others know.
    """
    given = Path(os.environ.get(COMPILED, "."))
    chosen = given.is_absolute() and given.parent not in (temporary(), Path(tempfile.gettempdir()))
    return {COMPILED: str(given if chosen else require(caches() / "torchinductor"))}
