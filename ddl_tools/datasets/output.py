"""Fill a folder with a data set: whole or not at all, in many processes, with clear errors."""

import errno
import json
import multiprocessing
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from filelock import Timeout
from tqdm import tqdm

from ddl_core.errors import DataError
from ddl_core.files import acquire, replacing, write_advice
from ddl_core.system import die_with_parent
from ddl_tools import limits
from ddl_tools.processes import safe_imports

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def filling(folder: Path, size: float) -> Iterator[None]:
    """Check that `size` bytes are free; lock `folder` by a file beside it while the block writes.

    Any `OSError` becomes a `DataError` with advice.
    """
    need = f"the set needs {size / 1e6:,.0f} MB"
    try:
        disk = next(place for place in (folder, *folder.parents) if place.is_dir())
        if shutil.disk_usage(disk).free < size:
            raise OSError(errno.ENOSPC, "not enough free space")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with acquire(folder.with_name(f".{folder.name}.lock"), timeout=0):
            yield
    except Timeout:
        raise DataError(f"another process writes {folder}; wait until it has ended") from None
    except OSError as error:
        reason, advice = error.strerror or str(error), write_advice(error)
        raise DataError(f"cannot write {folder}: {reason}; {need}", remedy=advice) from error


@contextmanager
def new_folder(folder: Path, size: float, *, keep: bool = False) -> Iterator[Path]:
    """Yield a hidden folder beside `folder`; it becomes `folder` when the block ends well.

    With `keep` it stays after an error, and the next call gets it again.
    """
    part = unfinished(folder)
    with filling(folder, size):
        try:
            if not keep:
                shutil.rmtree(part, ignore_errors=True)
            part.mkdir(exist_ok=True)
            yield part
            part.rename(folder)
        except BaseException:
            if not keep:
                shutil.rmtree(part, ignore_errors=True)
            raise


def unfinished(folder: Path) -> Path:
    """Return the hidden folder in which `folder` is made."""
    return folder.with_name(f".{folder.name}.unfinished")


def is_filled(folder: Path) -> bool:
    """Return whether something is at `folder`, apart from an empty folder."""
    return folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))


def is_made(folder: Path, found: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """Return whether a folder was made with the settings `wanted`; refuse one with other content.

    `found` are the settings that the folder names, None without.
    """
    if found is None:
        if is_filled(folder):
            raise DataError(
                f"{folder} is not empty and was not made by this command; choose another folder"
            )
        return False
    other = [
        f"{name} = {found.get(name)}, not {value}"
        for name, value in wanted.items()
        if found.get(name) != value
    ]
    if other:
        raise DataError(
            f"{folder} was made with {', '.join(other)}; ask for the same settings, choose another "
            "folder, or delete this one"
        )
    return True


def read_settings(path: Path, command: str, *fields: str) -> dict[str, Any] | None:
    """Return the JSON object in a file that describes a set; None if the file is missing.

    The object has to have `fields`; `command` makes the file.
    """
    try:
        found = json.loads(path.read_bytes())
        if isinstance(found, dict) and found.keys() >= {*fields}:
            return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        pass  # not JSON: refused below, like JSON that lacks a field
    raise DataError(
        f"{path} is damaged, or no file of `{command}`: if that command made {path.parent}, delete "
        "the folder and make it again; if not, rename the file"
    )


def write_settings(path: Path, content: Mapping[str, Any]) -> None:
    """Write such a file, whole or not at all."""
    with replacing(path) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def parallel(
    work: Callable[[T], R],
    tasks: Sequence[T],
    title: str,
    *,
    processes: int | None = None,
    chunk: int = 1,
) -> Iterator[R]:
    """Yield ``work(task)`` for each task, in order, with a progress bar.

    `work` is a function at module level. A process takes `chunk` tasks at a time. By default there
    is one process per usable core; with 1, none is started.
    """
    bar = partial(tqdm, total=len(tasks), desc=title, disable=None)
    processes = processes or limits.whole_cores()
    if processes == 1:
        yield from bar(map(work, tasks))
        return
    # Not fork, as tqdm.contrib.concurrent would: the caller may hold threads and locks (torch).
    spawn = multiprocessing.get_context("spawn")
    try:
        with ExitStack() as stack:
            with safe_imports():  # all processes start here
                pool = ProcessPoolExecutor(processes, spawn, initializer=_start_worker)
                results = stack.enter_context(pool).map(work, tasks, chunksize=chunk)
            yield from bar(results)
    except BrokenProcessPool:
        raise DataError(
            f"one of {processes} processes was killed, or ran out of memory; run the same command "
            "again, with fewer processes"
        ) from None


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers in good order
    die_with_parent()  # a worker of a killed parent would wait for its next task for ever
