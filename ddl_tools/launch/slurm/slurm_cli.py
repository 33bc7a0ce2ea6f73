"""The programs of SLURM: what they do depends on their command lines and scripts alone.

Each is called with a time limit: a dead controller lets them hang.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddl_core.errors import LaunchError
from ddl_tools.names import plural
from ddl_tools.processes import users_environment, without_slurms_options

TIMEOUT_S = 60.0
JOB_ID = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)  # --parsable: "17", or "17;cluster"
OURS = "%A|%j|%T|%r"  # job, its name, state, reason for waiting
GRANTED = "%A|%a|%l|%D"  # job, its account, time limit, nodes
DIRECTIVES = re.compile(r"^#SBATCH (.*)$", re.MULTILINE)
# To sbatch a variable counts more than a line of the script. These may say where a job of a script
# goes that does not say so itself: a centre sets them for all its users.
ADDITIONS = frozenset(
    f"SBATCH_{name}"
    for name in (
        *("ACCOUNT", "COMMENT", "CONSTRAINT", "EXPORT", "NETWORK"),
        *("PARTITION", "QOS", "RESERVATION", "WCKEY"),
    )
)

NO_REASON = "None"  # what squeue prints in place of one
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


def submit(path: Path, script: str) -> str:
    """Submit the job of a script, which is in a file; return its number."""
    said = call("sbatch", "--parsable", str(path), script=script)
    if not (found := JOB_ID.search(said)):
        raise LaunchError(f"sbatch answered {said.strip()!r}, which names no job")
    return found[1]


def try_script(path: Path, script: str) -> None:
    """Ask whether a job of a script, which is in a file, would be taken; `LaunchError` if not."""
    call("sbatch", "--test-only", str(path), script=script)


def queue() -> Queue | None:
    """Return this user's waiting and running jobs; None on a machine without SLURM."""
    if shutil.which("squeue") is None:
        return None
    found: Queue = {}
    # --all: a job of a hidden partition is one, too.
    for line in call("squeue", "--me", "--all", "--noheader", f"--format={OURS}").splitlines():
        job_id, name, state, reason = (*line.strip().split("|", 3), "", "", "")[:4]
        found[job_id] = SlurmJob(name, state, "" if reason == NO_REASON else reason)
    return found


def call(program: str, *arguments: str, script: str = "") -> str:
    """Return what a program of SLURM says; of `sbatch`, `script` is what it is to read."""
    environment = users_environment()
    try:
        return subprocess.run(
            [program, *arguments],
            # a job inherits it
            env={**without_slurms_options(environment), **_additions(environment, script)},
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


def options(script: str) -> dict[str, str]:
    """Return the options of ``sbatch`` in a script; of one that is there twice, the last."""
    words = [
        word.removeprefix("--").partition("=")
        for line in DIRECTIVES.findall(script)
        for word in shlex.split(line, comments=True)
        if word.startswith("--")
    ]
    return {name: value for name, _, value in words}


def _additions(environment: Mapping[str, str], script: str) -> dict[str, str]:
    """Return the variables that add to the options of a script."""
    if not script:
        return {}
    given = options(script)
    return {
        name: environment[name]
        for name in sorted(ADDITIONS & environment.keys())
        if name.removeprefix("SBATCH_").lower() not in given
    }


def notes(script: str) -> list[str]:
    """Say which variables of the environment change a submission, and which might have."""
    variables = users_environment()
    added = _additions(variables, script)
    which = {name: variables[name] for name in ("SLURM_CLUSTERS",) if name in variables}
    used = [f"{name}={value}" for name, value in {**added, **which}.items()]
    ignored = [
        name for name in sorted(variables) if name.startswith("SBATCH_") and name not in added
    ]
    found = [f"from the environment: {', '.join(used)}"] if used else []
    if ignored:
        found.append(
            f"ignored: {', '.join(ignored)}; the script says what a job asks for. Set further "
            "options in sbatch_lines of the site file"
        )
    return found


def differences(scripts: Mapping[str, str]) -> list[str]:
    """Say where jobs in the queue differ from their scripts: account, time limit, nodes.

    `scripts` are those of some jobs, by number. A job that has left the queue is not compared.
    """
    chosen = (
        "--all",
        "--noheader",
        "--noconvert",
        "--jobs",
        ",".join(scripts),
        f"--format={GRANTED}",
    )
    try:
        rows = call("squeue", *chosen).splitlines() if scripts else []
    except LaunchError as error:
        return [f"the jobs are not compared with their scripts: {error}"]
    found: dict[str, list[str]] = {}
    for row in rows:
        job_id, *granted = row.strip().split("|")
        if job_id not in scripts or len(granted) != 3 or not granted[-1].isdecimal():
            continue
        given = options(scripts[job_id])
        for name, has in zip(("account", "time", "nodes"), granted, strict=True):
            if (wanted := given.get(name)) and _comparable(name, has) != _comparable(name, wanted):
                found.setdefault(f"{name} {has}, but the script says {wanted}", []).append(job_id)
    return [
        f"{plural(len(jobs), 'job')} in the queue ({', '.join(jobs)}): {text}"
        for text, jobs in found.items()
    ]


def _comparable(name: str, value: str) -> str | int:
    """Return a value as SLURM compares it: it rounds time limits up to whole minutes."""
    days, _, clock = value.rpartition("-")
    parts = clock.split(":")
    if name != "time" or not all(part.isdecimal() for part in (days or "0", *parts)):
        return value.lower()
    total = 0
    for part in parts:
        total = 60 * total + int(part)
    return -(-(86_400 * int(days or 0) + total) // 60)


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
