"""The programs of SLURM, each called with a time limit: a dead controller lets them hang."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddl_core.errors import LaunchError
from ddl_tools.processes import users_environment

TIMEOUT_S = 60.0
JOB_ID = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)  # --parsable: "17", or "17;cluster"
OURS = "%A|%j|%T|%r"  # job, its name, state, reason for waiting

RUNNING = ("RUNNING", "COMPLETING", "STOPPED", "SUSPENDED")

FIELDS = "JobIDRaw,JobName,State,ExitCode"
FINAL = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"}
    | {"NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)


@dataclass(frozen=True)
class SlurmJob:
    """A job as SLURM has it, in its queue or ended."""

    name: str
    state: str
    reason: str = ""  # for waiting
    exit_code: int | None = None  # of its script, once ended; negative where a signal ended it


Queue = dict[str, SlurmJob]


def submit(script: Path) -> str:
    """Submit a job; return its number."""
    said = call("sbatch", "--parsable", str(script))
    if not (found := JOB_ID.search(said)):
        raise LaunchError(f"sbatch answered {said.strip()!r}, which names no job")
    return found[1]


def queue() -> Queue | None:
    """Return this user's waiting and running jobs; None on a machine without SLURM."""
    if shutil.which("squeue") is None:
        return None
    found: Queue = {}
    for line in call("squeue", "--me", "--noheader", f"--format={OURS}").splitlines():
        job_id, name, state, reason = (*line.strip().split("|", 3), "", "", "")[:4]
        found[job_id] = SlurmJob(name, state, reason)
    return found


def call(program: str, *arguments: str) -> str:
    """Return what a program of SLURM says."""
    try:
        return subprocess.run(
            [program, *arguments],
            env=users_environment(),  # a job inherits it
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


def ended(job_ids: Sequence[str]) -> dict[str, SlurmJob] | None:
    """Return, by number, those of some jobs that have ended; None where no accounting answers."""
    chosen = ("--allocations", "--jobs", ",".join(job_ids))
    try:
        rows = call("sacct", "--noheader", "--parsable2", f"--format={FIELDS}", *chosen)
    except LaunchError:
        return None
    found = {}
    for row in rows.splitlines():
        job_id, name, state, exit_code = (*row.split("|"), "", "", "")[:4]
        last = state.partition(" ")[0]  # "CANCELLED by 17" also says who did it
        if last in FINAL:
            found[job_id] = SlurmJob(name, last, exit_code=_status(exit_code))
    return found


def _status(text: str) -> int:
    """Return SLURM's ``status:signal`` as one number."""
    status, _, number = text.partition(":")
    return -int(number) if number.isdigit() and int(number) else int(status or 0)
