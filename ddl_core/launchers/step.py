"""Run the command that starts ranks to its end, and leave no process of it behind."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from ddl_core.launchers import failure, hang, processes
from ddl_core.launchers.allocation import Allocation
from ddl_core.records import Failure

# Less than what whoever stops a run waits for, before it kills this process as well.
STEP_END_S = 15.0


def execute(
    command: Sequence[str],
    logs: Path,
    environment: Mapping[str, str],
    watch: Callable[[Popen[bytes]], str | None],
) -> tuple[Failure | None, int]:
    """Start `command` and end it when `watch` returns.

    Parameters
    ----------
    command
        torchrun, horovodrun or srun, with the rank's program.
    logs
        Folder of this attempt's output.
    environment
        Of the command.
    watch
        Waits for the end of the process; returns None, or a text if the ranks make no progress.

    Returns
    -------
    Failure or None
        Which rank the others wait for, if `watch` found no progress; or that there was no start.
    int
        Exit code, negative where a signal ended it.
    """
    token = uuid.uuid4().hex
    try:
        launcher = processes.start(
            command, token=token, log=failure.torchrun_log(logs), environment=environment
        )
    except OSError as error:
        return Failure.of("NotStarted", f"torchrun: {error}"), -1
    try:
        stalled = watch(launcher)
        cause = hang.diagnose(logs, token, stalled) if stalled else None
    finally:
        with processes.undisturbed():
            end_step(launcher)
            left = processes.end_all(token)
            exit_code = launcher.wait() if launcher.pid not in left else -1
    return cause, exit_code


def end_step(launcher: Popen[bytes]) -> None:
    """Let srun end its tasks on all nodes: `processes.end_all` reaches only those on this one."""
    if Allocation.current() is None or launcher.poll() is not None:
        return
    launcher.terminate()
    with suppress(TimeoutExpired):  # then the end of the job ends what is left
        launcher.wait(STEP_END_S)
