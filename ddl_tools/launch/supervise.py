"""Run the ranks of a run to their end, ask who hangs, and leave no process behind.

A worker answers SIGUSR1 by writing its Python stack to standard error. A rank that waits for others
is inside its framework; the one they wait for is somewhere else, or does not answer at all.
"""

import re
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

import psutil

from ddl_core.system import Passing, temporary_in
from ddl_tools import processes
from ddl_tools.launch import diagnose, fork_server
from ddl_tools.launch.commands import Command
from ddl_tools.launch.diagnose import rank_log, tail
from ddl_tools.records.run import Failure

# Less than what whoever stops a run waits for, before it kills this process as well.
STEP_END_S = 15.0


Launcher = Popen[bytes] | fork_server.Ranks

ANSWER_S = 10.0  # a busy machine may need seconds; a rank that is stopped never answers
POLL_S = 0.1
SHOWN_RANKS = 8
FRAMEWORKS = (
    *("/torch/", "/horovod/", "/deepspeed/", "/tensorflow/", "/jax/", "/keras/", "/mxnet/"),
    "/frameworks/rendezvous.py",
)
INNERMOST = re.compile(r'\(most recent call first\):\n  File "([^"]+)", line (\d+) in (\S+)')


def execute(
    command: Command,
    logs: Path,
    environment: Mapping[str, str],
    watch: Callable[[Launcher], str | None],
) -> tuple[Failure | None, int]:
    """Start ranks and end them when `watch` returns.

    Parameters
    ----------
    command
        How they are started.
    logs
        Folder of this attempt's output.
    environment
        Of the ranks.
    watch
        Waits for the end of what starts them; returns None, or a text if they make no progress.

    Returns
    -------
    Failure or None
        Which rank the others wait for, if `watch` found no progress; or that there was no start.
    int
        Exit code of what started them, negative where a signal ended it.
    """
    token = uuid.uuid4().hex
    # Ranks of this machine get a temporary directory that goes with them; a job has its own from
    # SLURM, on each node.
    with nullcontext() if command.step else Passing() as folder:
        own = {**environment, **temporary_in(folder)} if folder else environment
        try:
            launcher = start(command, logs, own, token)
        except OSError as error:
            return Failure.of("NotStarted", f"the ranks cannot be started: {error}"), -1
        try:
            stalled = watch(launcher)
            cause = ask_ranks(logs, token, stalled) if stalled else None
        finally:
            with processes.undisturbed():
                end_step(launcher)
                left = processes.end_all(token)
                exit_code = launcher.wait() if launcher.pid not in left else None
    return cause, -1 if exit_code is None else exit_code


def start(command: Command, logs: Path, environment: Mapping[str, str], token: str) -> Launcher:
    """Start ranks, all of whose processes carry `token`.

    Raises
    ------
    OSError
        If they cannot be started.
    """
    if command.step:
        log = diagnose.launcher_log(logs)
        return processes.start(command.step, token=token, log=log, environment=environment)
    request: dict[str, Any] = {"rank": list(command.rank), "ranks": command.ranks}
    request |= {"logs": str(logs), "environment": dict(environment), "token": token}
    request |= {"folder": str(Path.cwd()), "wiring": command.wiring}
    return fork_server.Ranks(request)


def end_step(step: Launcher) -> None:
    """Let srun end its tasks on all nodes: `processes.end_all` reaches only those on this one."""
    if not isinstance(step, Popen) or step.poll() is not None:
        return
    step.terminate()
    with suppress(TimeoutExpired):  # then the end of the job ends what is left
        step.wait(STEP_END_S)


def ask_ranks(logs: Path, token: str, text: str) -> Failure:
    """Return the failure of a run that makes no progress, with the rank to blame where known."""
    ranks = _ranks(token)
    # Before they are asked: an answer may be complete before the next line runs.
    starts = {rank: _size(rank_log(logs, rank)) for rank in sorted(ranks)}
    for process in ranks.values():
        with suppress(psutil.Error):
            process.send_signal(signal.SIGUSR1)
    places = _answers(logs, starts)
    absent = [rank for rank, place in places.items() if not _in_framework(place)]
    blamed = absent[0] if len(absent) == 1 and len(places) > 1 else None
    shown = [f"\n  rank {rank}: {place or 'does not answer'}" for rank, place in places.items()][
        :SHOWN_RANKS
    ]
    if blamed is not None:
        text += f"; the others wait for rank {blamed}"
        shown.append(tail(rank_log(logs, blamed)))
    return Failure.of("Timeout", text + "".join(shown), blamed)


def _ranks(token: str) -> dict[int, psutil.Process]:
    """Return the process of every rank, but not the processes of its loader."""
    found = {process.pid: process for process in processes.of_ranks(token)}
    ranks = {}
    for process in found.values():
        with suppress(psutil.Error):
            if process.ppid() not in found:
                ranks[int(process.environ()["RANK"])] = process
    return ranks


def _answers(logs: Path, starts: dict[int, int]) -> dict[int, str | None]:
    """Return where each rank is, waiting until all have answered or the time is up."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        places = {rank: _place(rank_log(logs, rank), start) for rank, start in starts.items()}
        if all(places.values()) or time.monotonic() > deadline:
            return places
        time.sleep(POLL_S)


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _place(log: Path, start: int) -> str | None:
    """Return the innermost frame that a rank wrote after position `start` of its log."""
    if not log.exists():
        return None
    with log.open("rb") as file:
        file.seek(start)
        found = INNERMOST.findall(file.read().decode(errors="replace"))
    return "{2} ({0}:{1})".format(*found[-1]) if found else None


def _in_framework(place: str | None) -> bool:
    return place is not None and any(name in place for name in FRAMEWORKS)
