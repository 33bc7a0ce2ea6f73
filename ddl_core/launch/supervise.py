"""Run the ranks of a run to their end, and leave no process of them behind."""

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

from ddl_core import processes
from ddl_core.launch import diagnose, fork_server, hang
from ddl_core.launch.commands import Command
from ddl_core.records.run import Failure

# Less than what whoever stops a run waits for, before it kills this process as well.
STEP_END_S = 15.0


Launcher = Popen[bytes] | fork_server.Ranks


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
    try:
        launcher = start(command, logs, environment, token)
    except OSError as error:
        return Failure.of("NotStarted", f"the ranks cannot be started: {error}"), -1
    try:
        stalled = watch(launcher)
        cause = hang.diagnose(logs, token, stalled) if stalled else None
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
    request["folder"] = str(Path.cwd())
    return fork_server.Ranks(request)


def end_step(step: Launcher) -> None:
    """Let srun end its tasks on all nodes: `processes.end_all` reaches only those on this one."""
    if not isinstance(step, Popen) or step.poll() is not None:
        return
    step.terminate()
    with suppress(TimeoutExpired):  # then the end of the job ends what is left
        step.wait(STEP_END_S)
