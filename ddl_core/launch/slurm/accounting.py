"""How jobs ended, asked of whatever a site has: accounting, its log of jobs, the controller."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddl_core.errors import LaunchError
from ddl_core.launch.slurm import scheduler

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
        return scheduler.call(program, *arguments)
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
