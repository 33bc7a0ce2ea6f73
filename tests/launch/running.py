"""What the tests of running things share: small runs, and a look at their processes."""

import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
import yaml
from click.testing import CliRunner, Result

from ddl_core.config import RunSpec
from ddl_tools import limits
from ddl_tools.cli import main
from ddl_tools.launch import local_ranks
from ddl_tools.launch.study import plan_run
from ddl_tools.processes import import_path
from ddl_tools.records.ledger import Entry
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.progress import read_progress
from ddl_tools.records.run import (
    Attempt,
    EpochRecord,
    Failure,
    append_epoch,
    read_record,
    write_record,
)

two_ranks = pytest.mark.skipif(limits.whole_cores() < 2, reason="two ranks need two cores")
# A program that executes the run in the folder that is its argument.
CALLER = "import sys; from ddl_tools.launch.ranks import run_ranks; run_ranks(sys.argv[1])"
TINY: dict[str, Any] = {
    "loader": "synthetic",
    "model": "resnet8",
    "device": "cpu",
    "image_size": 32,
    "classes": 10,
    "train_images": 32,
    "eval_images": 8,
    "local_batch_size": 8,
    "epochs": 1,
    "warmup_epochs": 0,
    "discard_steps": 0,
    "loader_workers": 0,
    "checkpoint_every": 0,
}
ENDLESS = {**TINY, "train_images": 100_000, "epochs": 1000}


def planned(**fields: Any) -> Path:
    """Plan a small run; two ranks make it a DDP run."""
    strategy = "ddp" if fields.get("gpus_per_node", 1) > 1 else "single"
    return plan_run(RunSpec(**{**TINY, "strategy": strategy, **fields}), "test", results())


def injected(path: Path) -> dict[str, Any]:
    """Return what the cell that papermill adds to a notebook sets."""
    cells = nbformat.read(path, as_version=4).cells
    (cell,) = [one for one in cells if "injected-parameters" in one.metadata.get("tags", [])]
    namespace: dict[str, Any] = {}
    exec(cell.source, {}, namespace)
    return namespace


PORTS = count(10_000 + os.getpid() % 900 * 10)


def free_port() -> int:
    """Return a port for ranks to meet at, which nothing takes before them.

    The system gives none of these to connections (they get 32768 and above), nor a job script to
    its ranks (20000 and above); other test processes begin elsewhere.
    """
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", next(PORTS))) as one:
            return one.getsockname()[1]


@contextmanager
def control_group(kind: str, name: str, older: str, value: int) -> Iterator[Path]:
    """Make a control group with one limit; needs root. Yields the file that takes the processes."""
    root = Path("/sys/fs/cgroup")
    if (root / kind).is_dir():  # version 1
        root, name = root / kind, older
    group = root / f"ddl-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / name).write_text(str(value))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"cannot limit {kind}: {error}")
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def run_within(run_dir: Path, *words: str) -> None:
    """Execute a run by a process that `words` begin, with a server of its own for its ranks."""
    alone = {name: value for name, value in os.environ.items() if name != local_ranks.SERVER}
    done = subprocess.run(
        [*words, sys.executable, "-c", CALLER, str(run_dir)],
        env={**alone, "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert read_record(run_dir).status in ("failed", "completed"), done.stderr


def joining(group: Path) -> tuple[str, ...]:
    """Return the words of a command that begins in a control group."""
    return "sh", "-c", f'echo $$ >{group} && exec "$@"', "sh"


def unshared(kind: str, command: str) -> tuple[str, ...]:
    """Return the words of a command that begins in a namespace of its own, after `command`."""
    words = ("unshare", f"--{kind}", "sh", "-c", f'{command} && exec "$@"', "sh")
    try:
        done = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"cannot make a namespace: {error}")
    if done.returncode:
        pytest.skip(f"cannot make a namespace: {done.stderr}")
    return words


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 90) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds} s for {what}")


def processes_of(run_dir: Path) -> list[psutil.Process]:
    """Return the ranks of a run, what started them, and whatever they started.

    They have the command lines of others, but write to the run's logs.
    """
    logs = str(RunFiles(run_dir).logs.resolve())
    return [one for one in psutil.process_iter() if any(logs in path for path in _open_files(one))]


def rank_of(process: psutil.Process) -> int | None:
    """Return the rank to whose output a process writes, None if there is none."""
    found = re.findall(r"/attempt_0/(\d+)/stdout\.log$", "\n".join(_open_files(process)), re.M)
    return int(found[0]) if found else None


def rank_process(run_dir: Path, rank: int) -> psutil.Process:
    """Return the process of one rank, not one that it has started."""
    found = [one for one in processes_of(run_dir) if rank_of(one) == rank]
    for process in found:
        if process.ppid() not in {one.pid for one in found}:
            return process
    raise AssertionError(f"rank {rank} has no process")


def _open_files(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return [file.path for file in process.open_files()]
    return []


def is_training(run_dir: Path) -> bool:
    """Say whether the first step of a run is done."""
    progress = read_progress(run_dir)
    return progress is not None and progress["phase"] == "train" and progress["step"] > 0


def change(run: Entry | Path, **fields: Any) -> None:
    """Change fields of a run's record."""
    run_dir = run if isinstance(run, Path) else run.directory
    write_record(run_dir, read_record(run_dir).model_copy(update=fields))


def error_of(run_dir: Path) -> Failure:
    """Return why a run failed, as its record has it."""
    record = read_record(run_dir)
    assert record.status == "failed"
    assert record.error is not None
    return record.error


def ddl(*arguments: object, status: int | None = None) -> Result:
    """Call the command ``ddl`` in this process; it has to end with `status`, if one is given."""
    result = CliRunner().invoke(main, [str(one) for one in arguments])
    assert status in (None, result.exit_code), result.output
    return result


def study_file(folder: Path, repeats: int = 1, **base: Any) -> Path:
    """Write a study of small runs; a list is an axis."""
    axes = {name: base.pop(name) for name in list(base) if isinstance(base[name], list)}
    fixed = {name: value for name, value in {**TINY, **base}.items() if name not in axes}
    content = {"name": "small", "question": "?", "base": fixed, "axes": axes, "repeats": repeats}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def finish(run_dir: Path, **changes: Any) -> None:
    """Make a planned run complete, with the lines that it would have written."""
    record = read_record(run_dir)
    attempts = [Attempt(started_utc=record.created_utc, status="completed")]
    update = {"status": "completed", "attempts": attempts, **changes}
    for epoch in range(record.spec.epochs):
        for phase in ("train", "eval"):
            append_epoch(run_dir, line(epoch, phase))
    write_record(run_dir, record.model_copy(update=update))


def line(epoch: int, phase: str = "train", **changes: Any) -> EpochRecord:
    """Return what a run may have written of an epoch."""
    values: dict[str, Any] = {
        "attempt": 0,
        "epoch": epoch,
        "phase": phase,
        "cold": epoch == 0,
        "steps": 4,
        "samples": 32,
        "corrupt_images": 0,
        "wall_s": 2.0,
        "cpu_s": 2.0,
        "data_s": 0.1,
        "rank_wall_s_min": 1.9,
        "rank_wall_s_max": 2.0,
        "step_s_median": 0.5,
        "step_s_p95": 0.5,
        "throughput_samples_per_s": 16.0,
        "loss": 1.5,
        "top1": None if phase == "train" else 0.25,
        "top5": None if phase == "train" else 0.5,
        "lr": 0.1 if phase == "train" else None,
        "max_memory_bytes": None,
    }
    return EpochRecord(**values | changes)
