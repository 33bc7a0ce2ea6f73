"""Start the ranks of one run, watch them, and record how they ended.

However a run ends, no process is left behind and ``run.json`` says why.
"""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from ddl_core.config import RunSpec
from ddl_core.errors import DDLError, LaunchError
from ddl_core.registry import COMMAND
from ddl_tools import processes
from ddl_tools.launch import commands, diagnose, measuring, preflight
from ddl_tools.launch.commands import Allocation, Command, environment
from ddl_tools.launch.local_ranks import LocalRanks, local_ranks
from ddl_tools.records.ledger import INTERRUPTED, complete_text, exclusive, finish_run
from ddl_tools.records.paths import RunFiles, locate
from ddl_tools.records.progress import SETUP_TIMEOUT_S, WAITING, Standing, read_progress
from ddl_tools.records.run import Attempt, Failure, RunRecord, read_record, write_record
from ddl_tools.records.storage import now, require_plain

WORKER = "ddl_tools.rank.worker"
PROBE_WORKER = "ddl_tools.doctor.probe"
LOOK_S = 1.0  # between two looks at how far a run is; its end is seen at once
POLL_S = 0.25  # for the end of srun
STALL_TIMEOUT_S = 300.0
# Of set-up, once the system has refused a process: a library may then wait for what never began.
REFUSED_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 300.0  # of a step of `ddl doctor`: its job has ten minutes
# A rank may hang at its end, after the record says completed, or it has said why it failed.
EXIT_GRACE_S = 20.0
STEP_END_S = 15.0  # less than `cancel_all` waits before it kills this process as well

Launcher = Popen[bytes] | LocalRanks
OnProgress = Callable[[Standing], None]
Ended = Callable[[float], bool]
"""Waits so many seconds at most for the ranks of a run; says whether they have ended."""
Watch = Callable[[Ended], str | None]
"""`watch` of a run: returns when its ranks have ended or stay too long, or says that they hang."""
Execute = Callable[[RunSpec, RunFiles, Path, Watch], None]
"""Executes the ranks of an open attempt to their end; raises `Failed` if that is not completion."""


def run_ranks(
    run_dir: Path | str,
    on_progress: OnProgress | None = None,
    stall_timeout: float | None = None,
    execute: Execute | None = None,
) -> RunRecord:
    """Execute a planned, failed or interrupted run; return its completed record.

    `LaunchError` if the run failed, as its record then says; or if it is complete or at work
    elsewhere. `SpecError, DataError, RecordError, NotInstalledError` if it could not be started.
    `KeyboardInterrupt` if this process was interrupted or told to end, once all ranks are gone.

    Parameters
    ----------
    run_dir
        Folder with the run's ``run.json``.
    on_progress
        Called with every new content of ``progress.json``, about once a second.
    stall_timeout
        Seconds without a new ``progress.json`` after which a run that makes steps counts as
        hanging; by default ``DDL_STALL_TIMEOUT``, else 300. For set-up and first steps, and for
        probes, see `setup_limit_s`.
    execute
        How the ranks are executed; by default as processes of their own, by the run's launcher.
    """
    directory = Path(run_dir).resolve()
    files = RunFiles(directory)
    read_record(directory)
    limit = stall_timeout or float(os.environ.get("DDL_STALL_TIMEOUT") or STALL_TIMEOUT_S)
    name = f"run {directory.name}"
    with processes.stoppable(), measuring.alone(name), exclusive(files.lock, name):
        record = read_record(directory)
        if record.status == "completed":
            raise LaunchError(complete_text(record, directory))
        with _recorded(directory):
            _check(record, directory)
            logs = _begin(record, files)
            observe = partial(watch, record.spec, files, on_progress, limit)
            (execute or _execute)(record.spec, files, logs, observe)
        return read_record(directory)


def command(
    spec: RunSpec, run_dir: Path, logs: Path, data_dir: Path | None = None
) -> commands.Command:
    """Return what starts the ranks of a run, which read `data_dir`."""
    worker = PROBE_WORKER if spec.work == "probe" else WORKER
    return commands.command(spec, worker, run_dir, logs, data_dir)


def setup_limit_s(spec: RunSpec, stall_timeout: float) -> float:
    """Return how long set-up and first steps may take: ``DDL_SETUP_TIMEOUT``, else 1200 at least.

    Of a probe 300, unless the variable says otherwise.
    """
    if given := os.environ.get("DDL_SETUP_TIMEOUT"):
        return float(given)
    return PROBE_TIMEOUT_S if spec.work == "probe" else max(SETUP_TIMEOUT_S, stall_timeout)


def _check(record: RunRecord, directory: Path) -> None:
    preflight.check_room(directory)
    if record.spec.work == "probe":
        return  # what else is wrong, its ranks are to find
    preflight.check_run(record.spec)
    if folder := _data_dir(directory):
        preflight.check_data(folder, record.spec.data_format)


def _begin(record: RunRecord, files: RunFiles) -> Path:
    """Open a new attempt in the record; return the folder of its logs."""
    require_plain(files.directory)
    files.error.unlink(missing_ok=True)
    files.progress.unlink(missing_ok=True)
    gone = Failure(kind=INTERRUPTED, message="its process was gone", category="killed")
    record.close_attempts(gone, ended_utc=None)
    logs = files.attempt(len(record.attempts))
    job = Allocation.current()
    record.begin_attempt(
        Attempt(started_utc=now(), block=job and job.block, place=job and job.place)
    )
    record.status, record.error = "running", None
    record.job_id = os.environ.get("SLURM_JOB_ID") if job else None
    write_record(files.directory, record)
    return logs


def _execute(spec: RunSpec, files: RunFiles, logs: Path, observe: Watch) -> None:
    """Let processes of their own execute the ranks; see `Execute`."""
    _draw_weights(spec, files)
    before = diagnose.Shortages.now()
    with ExitStack() as stack:
        try:
            words = command(spec, files.directory, logs, _data_dir(files.directory))
            started = start(words, logs, environment(spec))
            launcher = stack.enter_context(started)
        except OSError as error:
            cause = f"the ranks cannot be started: {error}"
            raise Failed(Failure.of("NotStarted", cause)) from None
        try:
            stalled = observe(partial(_ended, launcher))
            failure = diagnose.ask_ranks(logs, spec.started_ranks, stalled, before.since())
            if failure is None and launcher.poll() is None and files.error.exists():
                failure = diagnose.diagnose(files, logs, 1, before.since())  # ranks live yet
        finally:
            with processes.undisturbed():
                end_step(launcher)
                left = processes.end(launcher)
                code = launcher.wait() if launcher.pid not in left else None
    if read_record(files.directory).status == "completed":
        return
    code = -1 if code is None else code
    raise Failed(failure or diagnose.diagnose(files, logs, code, before.since()))


def _data_dir(directory: Path) -> Path | None:
    planned = read_record(directory).data_dir
    return locate(planned) if planned else None


@contextmanager
def start(command: Command, logs: Path, environment: Mapping[str, str]) -> Iterator[Launcher]:
    """Start ranks, all below one process."""
    if command.step:
        log = diagnose.launcher_log(logs)
        yield processes.start(command.step, log=log, environment=environment)
        return
    # Ranks of this machine get a temporary directory that goes with them; a job has its own from
    # SLURM, on each node.
    with processes.Passing() as folder:
        own = {**environment, **processes.temporary_in(folder)}
        with local_ranks(command, logs, own) as launcher:
            yield launcher


def end_step(step: Launcher) -> None:
    """Let srun end its tasks, which are no children of its own."""
    if not isinstance(step, Popen) or step.poll() is not None:
        return
    step.terminate()
    with suppress(TimeoutExpired):  # then the end of the job ends what is left
        step.wait(STEP_END_S)


def _ended(launcher: Launcher, seconds: float) -> bool:
    """Wait for the end of ranks; see `Ended`."""
    if isinstance(launcher, LocalRanks):
        return launcher.wait(seconds) is not None
    time.sleep(min(seconds, POLL_S))
    return launcher.poll() is not None


def _draw_weights(spec: RunSpec, files: RunFiles) -> None:
    """Let torch draw the weights of a run of another library, so that all begin with the same."""
    if spec.framework in ("torch", COMMAND) or files.initial.exists():
        return
    command = [sys.executable, "-m", "ddl_tools.frameworks.initial", str(files.directory)]
    done = subprocess.run(command, env=environment(spec), capture_output=True, text=True)
    if done.returncode:
        text = f"torch could not draw the initial weights: {done.stderr.strip()[-500:]}"
        raise Failed(Failure.of("NotStarted", text))


def watch(
    spec: RunSpec,
    files: RunFiles,
    on_progress: OnProgress | None,
    stall_timeout: float,
    ended: Ended,
) -> str | None:
    """Return when the ranks have `ended`; if they make no progress any more, return a text.

    Ranks of a run that is completed, or has failed, may not stay: a library may wait for a rank
    that has left.
    """
    seen, since, progress = _changed(files.progress), time.monotonic(), None
    failed_at = math.inf
    setup_timeout = setup_limit_s(spec, stall_timeout)
    # A profiler writes its report after the rank has ended.
    grace = stall_timeout if spec.prefix else EXIT_GRACE_S
    over, before = False, diagnose.Shortages.now()
    while not over:
        over = ended(LOOK_S)
        latest = _changed(files.progress)
        if latest != seen:
            seen, since = latest, time.monotonic()
            progress = read_progress(files.directory)
            if progress and on_progress:
                on_progress(progress)
        if over:
            return None
        if progress and progress["phase"] == WAITING:
            since = time.monotonic()  # another run of its study measures
        waited = time.monotonic() - since
        if waited > grace and read_record(files.directory).status == "completed":
            return None
        if files.error.exists():
            failed_at = min(failed_at, time.monotonic())
        if time.monotonic() - failed_at > grace:
            return None
        preparing = progress is None or progress.get("stage") is not None
        limit = setup_timeout if preparing else stall_timeout
        raised_by: str | None = "DDL_SETUP_TIMEOUT" if preparing else "DDL_STALL_TIMEOUT"
        if preparing and waited > REFUSED_TIMEOUT_S and before.since().refused_forks:
            limit, raised_by = REFUSED_TIMEOUT_S, None
        if waited > limit:
            return _stall_text(progress, waited, raised_by)
    return None


def _changed(path: Path) -> int | None:
    """Return when a file was last replaced, nanoseconds; None where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _stall_text(progress: Standing | None, seconds: float, raised_by: str | None) -> str:
    """Say where the ranks stopped; `raised_by` is the variable that raises the limit."""
    where = f"in phase {progress['phase']}, epoch {progress['epoch']}" if progress else "at start"
    if progress and progress.get("stage"):
        where += f", {progress['stage']}"
    text = f"no progress for {seconds:.0f} s ({where}): the ranks were ended"
    if raised_by:
        text += f"; if such a pause is expected, set {raised_by} to more seconds"
    return text


class Failed(LaunchError):
    """A failure that is to be recorded."""

    def __init__(self, cause: Failure) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextmanager
def _recorded(directory: Path) -> Iterator[None]:
    """Write into the record how the block failed, then let the error go on."""
    try:
        yield
    except Failed as error:
        finish_run(directory, error.cause)
        raise LaunchError(f"run {directory.name} failed: {error}") from None
    except DDLError as error:
        finish_run(directory, Failure.of_error(error))
        raise
    except KeyboardInterrupt as error:
        with processes.undisturbed():
            # A job stops its run likewise, at the notice of its time limit.
            others = "the user or its job" if Allocation.current() else "the user"
            cause = f"stopped by {str(error) or others} before its end"
            finish_run(directory, Failure.of(INTERRUPTED, cause))
        raise
