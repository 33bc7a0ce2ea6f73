"""Processes that do not outlive their run, however the caller ends."""

import faulthandler
import fcntl
import os
import resource
import shutil
import signal
import socket
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
from typing import Protocol

import psutil

from ddl_core.origin import HOME, IN_CLONE
from ddl_core.system import TEMPORARY, cannot_make, kept, own, require, temporary
from ddl_tools.subreaper import descendants, end_all, family

# Variables of a run's ranks: what they prove to each other that they belong to one run, and the
# process that all ranks of this machine descend from.
KEY, LEADER = "DDL_RUN_KEY", "DDL_RUN_LEADER"
COMMAND_STEP = "DDL_COMMAND_STEP"  # words of srun before a command of the user's, in a job
MOST_OPEN_FILES = 65_536  # some programs close every number up to their limit, one by one
# A site's folder for what libraries keep; in /tmp, each node has its own.
CACHES = "DDL_CACHES"
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
# A socket's path may have 107 bytes, of which libraries add up to 32; a long TMPDIR (some clusters
# have one per job) leaves no room.
MAX_LENGTH = 40
REAP_S = 2.0  # what a subreaper has to end in, once nothing is left below it
PREFIX = "p-"  # of such a folder
LEFT_S = 86_400.0  # age of one that may be removed if its lock is free; a new one gets it later
# Keeps the current folder, which may be a stranger's, out of the `sys.path` of Python processes.
# Python takes any text; this one tells our variable from one that the user has set.
SAFE_PATH, OURS = "PYTHONSAFEPATH", "ddl"

# Variables from which SLURM's programs take options that their command line does not have; those of
# a job are options of whatever it starts.
SLURMS_OPTIONS = (
    *("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SACCT_", "SINFO_"),
    *("SCANCEL_", "SCONTROL_"),
)
WHICH_SLURM = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"})

SUBREAPER = Path(__file__).with_name("subreaper.py")


def supervised(command: Sequence[str]) -> list[str]:
    """Return the words that execute `command` below a subreaper, which ends all that it starts.

    The calling thread counts as the parent: it ends with that thread, too.
    """
    return [sys.executable, "-I", str(SUBREAPER), str(os.getpid()), *command]


def start(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, its output in `log`; see `supervised`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            supervised(command),
            env=environment,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def import_path() -> str:
    """Return a ``PYTHONPATH`` with this package, so that a checkout need not be installed.

    An empty item of the user's would be the current folder, and is left out. What pip installed
    lies beside the packages of its environment, which others must not see.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([*([str(HOME)] if IN_CLONE else []), *filter(None, given)])


def imports() -> dict[str, str]:
    """Return the variables by which Python processes of ours find modules.

    What the user starts may import what lies beside it: see `users_environment`.
    """
    return {"PYTHONPATH": import_path(), SAFE_PATH: OURS}


@contextmanager
def setting(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment in a ``with`` block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def safe_imports() -> Iterator[None]:
    """Let Python processes that start meanwhile import nothing from the current folder.

    That includes processes that libraries start, such as those of `multiprocessing`.
    """
    if os.environ.get(SAFE_PATH):
        yield
        return
    with setting({SAFE_PATH: OURS}):
        yield


def users_environment() -> dict[str, str]:
    """Return the environment for programs of the user, without the effect of `safe_imports`."""
    own = os.environ.get(SAFE_PATH) == OURS
    return {name: value for name, value in os.environ.items() if not own or name != SAFE_PATH}


def without_slurms_options(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which SLURM's programs do what their command lines say.

    It still says which SLURM they speak to.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in WHICH_SLURM or not name.startswith(SLURMS_OPTIONS)
    }


def inherited() -> dict[str, str]:
    """Return the environment without the ``RANK`` that a shell may have."""
    return {name: value for name, value in os.environ.items() if name != "RANK"}


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


class Started(Protocol):
    """A process that was started, e.g. a `Popen`."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit status, None if it has not ended."""


def end(*started: Started) -> list[int]:
    """Kill processes with all that descends from them; return those that are left even so.

    What a process has left that has ended itself, the subreaper above it ends.
    """
    roots = _living(started)
    return end_all(lambda: [one for root in roots for one in family(root)])


def end_supervised(*started: subprocess.Popen[bytes]) -> None:
    """Kill what `start` has started, and let the subreapers above it end by themselves, if they do.

    They take the exit statuses, by which its CPU time counts as that of this process.
    """
    above = _living(started)
    end_all(lambda: [below for one in above for below in descendants(one)])
    for one in started:
        with suppress(subprocess.TimeoutExpired):
            one.wait(REAP_S)


def _living(started: Iterable[Started]) -> list[psutil.Process]:
    """Return those that have not ended: the number of one that has may be another's by now."""
    found = []
    for one in started:
        with suppress(psutil.NoSuchProcess):
            if one.poll() is None:
                found.append(psutil.Process(one.pid))
    return found


@contextmanager
def ends_of_children() -> Iterator[socket.socket]:
    """Give a socket that can be read once a child has ended, to `wait` for.

    For the main thread. Sentinels of `multiprocessing` would not do: a process inherits those of
    its parent, and outlives it.
    """
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    before = signal.signal(signal.SIGCHLD, lambda number, frame: None)
    other = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(other)
        signal.signal(signal.SIGCHLD, before)
        reader.close()
        writer.close()


@contextmanager
def stoppable(*others: signal.Signals) -> Iterator[None]:
    """Turn SIGTERM, SIGHUP and `others` into `KeyboardInterrupt`: one path cleans up after all.

    The first one does; more of them cannot interrupt the clean-up. A job gets SIGTERM from SLURM
    and from its script.
    """
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
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


def answer_where() -> None:
    """Let the launcher find this rank and ask where it is: SIGUSR1 writes its stack to its log.

    A signal by which a fault of its own ends it does so as well.
    """
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    faulthandler.enable(all_threads=False)
    sys.stdout.write(f"process {os.getpid()} of {socket.gethostname()}\n")
    sys.stdout.flush()


class Passing:
    """A private folder with a short name, until `cleanup` or the end of a ``with`` block."""

    def __init__(self) -> None:
        place = temporary()
        base = own(place if len(str(place)) <= MAX_LENGTH else Path("/tmp"))
        try:
            self.name = tempfile.mkdtemp(prefix=PREFIX, dir=base)
        except OSError as error:
            raise cannot_make(base, error) from None
        # The system frees this lock, whatever ends this process.
        lock = os.open(self.name, os.O_RDONLY)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._end = weakref.finalize(self, _remove, self.name, os.getpid(), lock)
        _sweep(base)

    def cleanup(self) -> None:
        """Remove it, with all that is in it."""
        self._end()

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *reason: object) -> None:
        self.cleanup()


def _remove(path: str, owner: int, lock: int) -> None:
    if os.getpid() == owner:  # not a fork of it, at its own end
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _sweep(base: Path) -> None:
    """Remove what processes have left in `base` that were killed."""
    oldest = time.time() - LEFT_S
    for left in base.glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = left.lstat()
            if found.st_uid != os.geteuid() or found.st_mtime > oldest:
                continue
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


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
