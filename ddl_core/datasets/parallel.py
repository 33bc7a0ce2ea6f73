"""Ordered, memory-bounded work in several processes."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from ddl_core.errors import DataError

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 4  # tasks in flight per process: enough to keep all busy, few enough to bound memory


def usable_cores() -> int:
    """Return the number of cores this process may use (a batch system may lend fewer than all)."""
    return len(os.sched_getaffinity(0))


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
    processes = processes or usable_cores()
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
