"""Tests leave this process and this machine as they found them; who does not, fails."""

import gc
import os
import pwd
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import active_children, forkserver, resource_tracker
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import psutil
import pytest

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGPIPE")
SIGNALS = [signal.Signals[name] for name in NAMES]
GRACE_S = 5.0  # what has been told to end needs a moment
# Set by libraries when they are imported, and by strategies in what is else the process of a rank,
# whichever test is the first; taken back all the same.
OF_LIBRARIES = frozenset(
    {
        "CUDA_MODULE_LOADING",
        "DS_ACCELERATOR",
        "GLOO_SOCKET_IFNAME",
        "KMP_DUPLICATE_LIB_OK",
        "KMP_INIT_AT_FORK",
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    }
)
# Threads that serve all that comes after, and those of a loader, which end with it.
KEPT_THREADS = ("read_", "tqdm", "TMonitor", "execnet")


def _children() -> set[int]:
    """Return the children of this process, but for those of multiprocessing.

    Its helpers serve all that comes after; a loader's processes end with the loader.
    """
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found.update(map(int, task.read_text().split()))
    helpers = (
        getattr(resource_tracker._resource_tracker, "_pid", None),
        getattr(forkserver._forkserver, "_forkserver_pid", None),
    )
    return found.difference(helpers, (one.pid for one in active_children() if one.daemon))


def _threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if not one.name.startswith(KEPT_THREADS)}


def _temporary() -> set[Path]:
    """Return what lies in the temporary directory, which is this process's own; see `directory`."""
    place = Path(tempfile.gettempdir())
    # Caches of the user, of jobs and of torch; folders of torchrun and of multiprocessing.
    kept = (f"ddl-{os.geteuid()}", f"ddl-{pwd.getpwuid(os.geteuid()).pw_name}")
    return {
        path
        for path in place.iterdir()
        if path.name not in kept
        and not path.name.startswith(("pymp-", "torchinductor_", "torchelastic_"))
    }


def _environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "a folder that is gone"


class Before:
    """How things were; `left` says what is different now, and takes back what can be."""

    def __init__(self) -> None:
        self.cwd, self.environment = _cwd(), _environment()
        self.handlers = {number: signal.getsignal(number) for number in SIGNALS}
        self.children, self.threads = _children(), _threads()
        self.temporary = _temporary()

    def left(self) -> list[str]:
        """Return a line for each difference; after it, nothing is different for the next test."""
        return [*self._settings(), *self._others()]

    def _settings(self) -> Iterator[str]:
        if (now := _cwd()) != self.cwd:
            os.chdir(self.cwd)
            yield f"current directory: {now}, not {self.cwd}"
        for number, handler in self.handlers.items():
            if (new := signal.getsignal(number)) != handler:
                signal.signal(number, handler)
                yield f"handler of {number.name}: {new}, not {handler}"
        if (environment := _environment()) != self.environment:
            for name in sorted({*environment, *self.environment}):
                new, before = environment.get(name), self.environment.get(name)
                if new != before:
                    os.environ.pop(name, None)
                    if before is not None:
                        os.environ[name] = before
                    if name not in OF_LIBRARIES:
                        yield f"environment: {name} = {new!r}, not {before!r}"

    def _others(self) -> Iterator[str]:
        if children := _after_grace(lambda: _living(_children() - self.children)):
            yield from (f"child process: {_told(pid)}" for pid in sorted(children))
            for pid in children:
                with suppress(psutil.Error):
                    psutil.Process(pid).kill()
        if _threads() - self.threads:
            gc.collect()  # an executor ends its threads when it goes
        if threads := _after_grace(lambda: _threads() - self.threads):
            yield from (f"thread: {one}" for one in threads)
        if paths := _after_grace(lambda: _temporary() - self.temporary):
            yield from (f"temporary file: {path}" for path in sorted(paths))
            for path in paths:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _after_grace(differences: Callable[[], set[Any]]) -> set[Any]:
    """Return what is still different when everybody had time to end."""
    deadline = time.monotonic() + GRACE_S
    while (found := differences()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _living(pids: set[int]) -> set[int]:
    return {pid for pid in pids if psutil.pid_exists(pid)}


def _told(pid: int) -> str:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return f"{pid} ({process.status()}): {' '.join(process.cmdline())[:200]}"
    return str(pid)


@contextmanager
def hermetic(what: str) -> Iterator[None]:
    """Fail with what is different afterwards."""
    before = Before()
    yield
    if left := before.left():
        pytest.fail("\n".join([f"{what} left something behind:", *left]), pytrace=False)


@contextmanager
def directory() -> Iterator[None]:
    """Give this process a temporary directory of its own, where nobody else leaves anything."""
    place = Path(tempfile.mkdtemp(prefix="ddl-t"))  # short: sockets come to lie in it
    place.chmod(0o711)  # daemons of other users look for their sockets in it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(place))
        patch.setattr(tempfile, "tempdir", str(place))
        # After multiprocessing has removed its own folder in it.
        Finalize(None, shutil.rmtree, (place, True), exitpriority=-200)
        yield
