"""The programs of SLURM, each called with a time limit: a dead controller lets them hang.

How jobs ended is asked of whatever a site has: accounting, its log of jobs, the controller.
"""

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ddl_core.errors import DDLError, LaunchError
from ddl_core.processes import uninterrupted

TIMEOUT_S = 60.0
JOB_ID = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)  # --parsable: "17", or "17;cluster"
OURS = "%A|%j|%T|%r"  # job, its name, state, reason for waiting

RUNNING = ("RUNNING", "COMPLETING", "STOPPED", "SUSPENDED")

FIELDS = "JobIDRaw,JobName,State,ExitCode"
SHOWN = re.compile(r"^JobId=(\d+) JobName=(\S+) .*?\bJobState=(\S+) .*?\bExitCode=(\S+)")
FINAL = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)

# Where a node fails in the moment of a job's start, SLURM holds the job until somebody releases it.
HELD = "launch failed requeued held"


@dataclass(frozen=True)
class QueuedJob:
    """A job that SLURM has not finished with."""

    name: str
    state: str
    reason: str


Queue = dict[str, QueuedJob]


def hold(script: Path, after: Sequence[str] = ()) -> str:
    """Submit a job that may not start yet; return its number.

    Once released it waits for the jobs `after` to end well, and is cancelled if one does not.

    Raises
    ------
    LaunchError
        With what `sbatch` said, if it refused or did not answer.
    """
    wait = (f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes") if after else ()
    said = call("sbatch", "--parsable", "--hold", *wait, str(script))
    if not (found := JOB_ID.search(said)):
        raise LaunchError(f"sbatch answered {said.strip()!r}, which names no job")
    return found[1]


@contextmanager
def held(script: Path, name: str, after: Sequence[str] = ()) -> Iterator[str]:
    """Submit the job of `name`, see `hold`, and let it start when the block ends; yield its number.

    A job that starts at once would write the record while the block does.

    Raises
    ------
    LaunchError
        If it was refused; or if the block or the release failed, and then no job is left.
    KeyboardInterrupt
        If this process was interrupted meanwhile, once the job is released.
    """
    with uninterrupted():  # else it would be held for ever, or no record would name it
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


def call(program: str, *arguments: str) -> str:
    """Return what a program of SLURM says.

    Raises
    ------
    LaunchError
        With its message, if it is not there, fails or does not answer.
    """
    try:
        return subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
            start_new_session=True,  # a terminal sends Ctrl-C to all processes of a session's group
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


@dataclass(frozen=True)
class EndedJob:
    """A job that SLURM has finished with."""

    name: str
    state: str
    exit_code: int
    """Of its script; negative where a signal ended it."""


def ended(job_ids: Sequence[str]) -> dict[str, EndedJob]:
    """Return, by number, those of some jobs of which SLURM says that they have ended.

    A site may have no accounting, may keep no log of jobs, and its controller forgets a job after
    minutes; a job of which nobody knows any more is left out.
    """
    found: dict[str, EndedJob] = {}
    for source in (_accounting, _job_log, _controller):
        if left := [job_id for job_id in job_ids if job_id not in found]:
            found |= source(left)
    return found


def _accounting(job_ids: Sequence[str]) -> dict[str, EndedJob]:
    return _sacct("--allocations", "--jobs", ",".join(job_ids))


def _job_log(job_ids: Sequence[str]) -> dict[str, EndedJob]:
    return _sacct("--completion", "--jobs", ",".join(job_ids))


def _sacct(*choice: str) -> dict[str, EndedJob]:
    rows = _ask("sacct", "--noheader", "--parsable2", f"--format={FIELDS}", *choice)
    return _final(tuple(row.split("|")) for row in rows.splitlines())


def _controller(job_ids: Sequence[str]) -> dict[str, EndedJob]:
    shown = (_ask("scontrol", "--oneliner", "show", "job", job_id) for job_id in job_ids)
    return _final(row.groups() for text in shown if (row := SHOWN.match(text)))


def _ask(program: str, *arguments: str) -> str:
    """Return what a program says; nothing if this site does not have what it is asked for."""
    try:
        return call(program, *arguments)
    except LaunchError:
        return ""


def _final(rows: Iterable[tuple[str, ...]]) -> dict[str, EndedJob]:
    """Return the jobs whose state is a last one; "CANCELLED by 17" also says who did it."""
    found = {}
    for job_id, name, state, exit_code in (row for row in rows if len(row) == 4):
        if (words := state.split()) and words[0] in FINAL:
            found[job_id] = EndedJob(name, words[0], _status(exit_code))
    return found


def _status(text: str) -> int:
    """Return SLURM's ``status:signal`` as one number."""
    status, _, number = text.partition(":")
    return -int(number) if number.isdigit() and int(number) else int(status or 0)
