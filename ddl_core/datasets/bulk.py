"""What everything that fills a folder needs: nobody beside it, many processes, errors that help."""

import errno
import multiprocessing
import os
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout
from tqdm import tqdm

from ddl_core.errors import DataError
from ddl_core.records.provenance import available_cores

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 4  # tasks in flight per process: enough to keep all busy, few enough to bound memory


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold the lock of a folder that is being made; wait for another process, and say so."""
    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        tqdm.write(f"another process is making {lock.parent}: waiting for it")
        held.acquire()
    try:
        yield
    finally:
        held.release()


@contextmanager
def explained(what: str, size: float) -> Iterator[None]:
    """Turn what the system says about files into what a user can do.

    Parameters
    ----------
    what
        Such as ``make the sample set in /data``.
    size
        Bytes that this takes.
    """
    need = f"the set needs {size / 1e6:,.0f} MB"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = f"{need}: free some space, or choose a folder on another disk"
        else:
            advice = f"{need} in a folder that you may write to: choose another one"
        reason = error.strerror or str(error)
        raise DataError(f"cannot {what}: {reason}; {advice}") from error


def require_space(folder: Path, size: float) -> None:
    """Raise the system's error for a full disk before the disk is full."""
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, "not enough free space", os.fspath(folder))


def stream(work: Callable[[T], R], tasks: Iterable[T], processes: int | None) -> Iterator[R]:
    """Yield ``work(task)`` for each task, in order.

    Parameters
    ----------
    work
        A function at module level.
    tasks
        Read lazily, only `AHEAD` tasks per process ahead of the results.
    processes
        Default: one per usable core. With 1, no process is started.

    Raises
    ------
    DataError
        If a worker process dies.
    """
    processes = processes or available_cores()
    if processes == 1:
        yield from map(work, tasks)
        return
    # Not fork: the caller may hold threads and locks (torch, a notebook kernel).
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker)
    waiting: deque[Future[R]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) >= AHEAD * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise DataError(
            f"one of {processes} worker processes died (killed, or out of memory); "
            "nothing finished is lost: run the same command again, with fewer processes"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers in good order
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A worker of a killed parent would wait for its next task for ever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
