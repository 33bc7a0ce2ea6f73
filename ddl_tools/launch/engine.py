"""An ipyparallel engine, and what it executes for a run: the worker of every other run.

``python -m ddl_tools.launch.engine OPTIONS`` is an engine that ends with its parent.
"""

import gc
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any


def rank_info() -> dict[str, Any]:
    """Return who this engine is: its rank is its launcher's, never the number of the engine."""
    return {
        "rank": int(os.environ["RANK"]),
        "world_size": int(os.environ["WORLD_SIZE"]),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }


def run_rank(worker: str, run_dir: str, logs: str) -> int:
    """Execute this engine's rank of a run; return the exit status of its `worker`, a module.

    Its state goes to `AsyncResult.data`, its output to a folder in `logs`.
    """
    from ipyparallel.datapub import publish_data

    folder = Path(logs) / "engines" / "attempt_0" / os.environ["RANK"]
    with _output_in(folder), _environment():
        try:
            status = import_module(worker).main([run_dir], publish_data)
        except Exception:  # nobody looks at this engine but through the run's files
            traceback.print_exc()
            status = 1
    gc.collect()  # the next run is to find the memory of this one free
    return int(status)


@contextmanager
def _environment() -> Iterator[None]:
    """Leave nothing of what the frameworks set for the next run to find."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _output_in(folder: Path) -> Iterator[None]:
    """Send what Python and the libraries below it print to the files that other ranks have."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with (folder / "stdout.log").open("w") as output, (folder / "stderr.log").open("w") as errors:
        try:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            with redirect_stdout(output), redirect_stderr(errors):
                yield
        finally:
            for descriptor, own in enumerate(kept, start=1):
                os.dup2(own, descriptor)
                os.close(own)


if __name__ == "__main__":
    from ipyparallel.engine.app import main

    from ddl_core.system import die_with_parent

    die_with_parent()
    main()
