"""The programs of SLURM, each called with a time limit: a dead controller lets them hang."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ddl_core.errors import DDLError, LaunchError
from ddl_core.records.ledger import Entry, State
from ddl_core.spec.run import RunSpec

TIMEOUT_S = 60.0
JOB_ID = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)  # --parsable: "17", or "17;cluster"
OURS = "%A|%j|%T|%r"  # job, its name, state, reason for waiting
# Where a node fails in the moment of a job's start, SLURM holds the job until somebody releases it.
HELD = "launch failed requeued held"
# Partition (* is the default), state, time limit, nodes, CPUs, MB, GPUs and others, features.
KINDS = "%P|%a|%l|%D|%c|%m|%G|%f"
RUNNING = ("RUNNING", "COMPLETING", "STOPPED", "SUSPENDED")


def job_name(spec: RunSpec) -> str:
    """Return what the job of a run is called."""
    return f"ddl-{spec.run_id}"


@dataclass(frozen=True)
class QueuedJob:
    """A job that SLURM has not finished with."""

    name: str
    state: str
    reason: str


Queue = dict[str, QueuedJob]


def hold(script: Path, after: str | None = None) -> str:
    """Submit a job that may not start yet; return its number.

    Once released it waits for job `after` to end well, and is cancelled if that does not.

    Raises
    ------
    LaunchError
        With what `sbatch` said, if it refused or did not answer.
    """
    wait = (f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes") if after else ()
    said = call("sbatch", "--parsable", "--hold", *wait, str(script))
    if not (found := JOB_ID.search(said)):
        raise LaunchError(f"sbatch answered {said.strip()!r}, which names no job")
    return found[1]


@contextmanager
def held(script: Path, name: str, after: str | None = None) -> Iterator[str]:
    """Submit the job of `name`, see `hold`, and let it start when the block ends; yield its number.

    A job that starts at once would write the record while the block does.

    Raises
    ------
    LaunchError
        If it was refused; or if the block or the release failed, and then no job is left.
    """
    job_id = hold(script, after)
    try:
        yield job_id
        release(job_id)
    except DDLError as error:
        with suppress(DDLError):
            cancel(job_id)
        raise LaunchError(f"job {job_id} of {name} was cancelled again: {error}") from None


def release(job_id: str) -> None:
    """Let a held job start.

    Raises
    ------
    LaunchError
        If that was refused.
    """
    call("scontrol", "release", job_id)


def release_held(entries: list[Entry], jobs: Queue | None) -> list[Entry]:
    """Let the runs start whose job SLURM holds since its start failed; return them.

    Raises
    ------
    LaunchError
        If that was refused.
    """
    held = [item for item in entries if (job := queued(item, jobs)) and job.reason == HELD]
    for item in held:
        release(str(item.job_id))
    return held


def cancel(*job_ids: str) -> None:
    """Cancel jobs; one that has ended or is not known any more is passed over.

    Raises
    ------
    LaunchError
        If that was refused.
    """
    call("scancel", *job_ids)


def queue() -> Queue | None:
    """Return this user's waiting and running jobs; None on a machine without SLURM.

    Raises
    ------
    LaunchError
        If SLURM is there and does not answer.
    """
    if shutil.which("squeue") is None:
        return None
    found: Queue = {}
    for line in call("squeue", "--me", "--noheader", f"--format={OURS}").splitlines():
        job_id, name, state, reason = (*line.strip().split("|", 3), "", "", "")[:4]
        found[job_id] = QueuedJob(name, state, reason)
    return found


def node_kinds() -> str:
    """Return what `sinfo` says of each kind of nodes, the fields of `KINDS` a line.

    Raises
    ------
    LaunchError
        If SLURM is not there, or does not answer.
    """
    return call("sinfo", "--noheader", "--exact", f"--format={KINDS}")


def refusal(script: Path) -> str | None:
    """Return why `sbatch` would refuse a script, None if it would not; submit nothing.

    Raises
    ------
    LaunchError
        If `sbatch` is not there.
    """
    if shutil.which("sbatch") is None:
        raise LaunchError("the program 'sbatch' is not on PATH")
    try:
        call("sbatch", "--test-only", str(script))
    except LaunchError as error:
        return str(error)
    return None


def joined(entries: list[Entry], jobs: Queue | None) -> list[Entry]:
    """Return the ledger as the queue has it.

    A login node may not see the lock that a compute node holds, so a run that looks interrupted
    may be at work; one that was interrupted may wait for its next turn; and a job that was
    cancelled before its start leaves a record that still says submitted.
    """
    return [_joined(item, jobs) for item in entries]


def queued(item: Entry, jobs: Queue | None) -> QueuedJob | None:
    """Return the job of a run, if it is in the queue.

    The number alone does not tell: another cluster, or one that was set up anew, may have given it
    to another job.
    """
    job = jobs.get(item.job_id or "") if jobs else None
    return job if job and job.name == job_name(item.spec) else None


def _joined(item: Entry, jobs: Queue | None) -> Entry:
    if item.job_id is None or jobs is None or item.state == "completed":
        return item
    if job := queued(item, jobs):
        state: State = "running" if job.state in RUNNING else "submitted"
        shown = f"job {item.job_id} {job.state}"
        reason = f"{shown} ({job.reason})" if job.reason else shown
        return replace(item, state=state, reason=reason, category=None)
    if item.state == "submitted":
        log = f"logs/slurm-{item.job_id}.log of the run's folder"
        gone = f"job {item.job_id} left the queue without a result ({log}); submit it again"
        return replace(item, state="interrupted", reason=gone)
    return item


def call(program: str, *arguments: str) -> str:
    """Return what a program of SLURM says.

    Raises
    ------
    LaunchError
        With its message, if it is not there, fails or does not answer.
    """
    try:
        return subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        ).stdout
    except FileNotFoundError:
        raise LaunchError(
            f"the program {program!r} is not on PATH; submit on a login node of a SLURM cluster"
        ) from None
    except OSError as error:
        raise LaunchError(f"cannot start {program}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"{program} did not answer within {TIMEOUT_S:.0f} s; ask it by hand, and try again"
        ) from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip() or f"exit code {error.returncode}"
        raise LaunchError(f"{program} {' '.join(arguments)}: {said}") from None
