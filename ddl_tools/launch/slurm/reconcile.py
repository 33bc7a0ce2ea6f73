"""Bring records and SLURM's queue together: runs that wait, were cancelled, or ended unheard."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ddl_core.errors import DDLError, LaunchError, SpecError
from ddl_core.files import is_there
from ddl_tools.launch.diagnose import tail
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.slurm.script import job_name, may_be_of
from ddl_tools.launch.slurm.slurm_cli import RUNNING, Queue, SlurmJob, ended
from ddl_tools.records.failures import INTERRUPTIONS, classify
from ddl_tools.records.ledger import (
    INTERRUPTED,
    SETTLED,
    Entry,
    State,
    entry,
    finish_idle_run,
)
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import Failure, RunRecord

BEGUN = ("running", "completed", "failed")  # records of runs that their job has come to
CANCELLED = Failure.of(INTERRUPTED, "cancelled by `ddl study cancel` before its start")


def numbers(items: Iterable[Entry]) -> list[str]:
    """Return the jobs of some runs, each once: the runs of a block share one."""
    return list(dict.fromkeys(item.job_id for item in items if item.job_id))


def with_queue(entries: list[Entry], jobs: Queue | None) -> list[Entry]:
    """Return runs as the queue has them; as they are where there is none.

    A login node may not see the lock that a compute node holds, so a run that looks interrupted may
    be at work. A job that was cancelled before its start leaves a record that says submitted.
    """
    return [_with_queue(item, jobs) for item in entries] if jobs is not None else entries


def _with_queue(item: Entry, jobs: Queue) -> Entry:
    job = jobs.get(item.job_id or "")
    if job and not may_be_of(job.name, item):
        job = None  # another cluster may have given the number to another job
    item = replace(item, queued=job is not None)
    if item.job_id is None or item.state in SETTLED:
        return item
    if job is None:
        if item.state != "submitted":
            return item
        log = _log(item)
        gone = f"job {item.job_id} left the queue without a result"
        if is_there(log):
            gone += f" (log: {log}); submit it again"
        else:
            gone += f" or a log ({log}); submit it again; if that recurs, can its node write there?"
        return replace(item, state="interrupted", reason=gone)
    alone = job.name == job_name(item.directory.parent.name, [item.spec])
    if item.state == "failed" and not alone:
        return item  # its job is at work on the others of the block
    state: State = "submitted"
    shown = f"job {item.job_id} {job.state}"
    reason = f"{shown} ({job.reason})" if job.reason else shown
    if job.state in RUNNING:
        if alone or (item.record is not None and item.record.status == "running"):
            state = "running"
        else:
            reason = f"{shown} (its turn in the block comes later)"
    return replace(item, state=state, reason=reason, category=None)


def presumed(entries: list[Entry]) -> list[Entry]:
    """Return runs as if each job were in the queue whose end no record says.

    For a dry run, which calls no program of SLURM. A job that stopped a run may begin again.
    """
    return [_presumed(item) for item in entries]


def _presumed(item: Entry) -> Entry:
    alive = item.state in ("submitted", "running", "interrupted", "unknown")
    over = item.record is not None and item.record.error == CANCELLED
    if over or not (alive and item.job_id):
        return replace(item, queued=False)
    state: State = "running" if item.state == "running" else "submitted"
    return replace(item, state=state, reason=f"job {item.job_id}", category=None, queued=True)


def _log(item: Entry) -> Path:
    """Return the log of a run's job, which SLURM makes when it starts the script."""
    return RunFiles(item.directory).logs / f"slurm-{item.job_id}.log"


def settle(entries: list[Entry]) -> list[Entry]:
    """Let the records of runs whose jobs have ended say why; return all runs as they then are.

    Without accounting, a job that left a log and began none of its runs has failed.
    """
    lost = [item for item in entries if item.is_lost]
    jobs = ended(numbers(lost)) if lost else {}
    begun = {item.job_id for item in entries if item.record and item.record.status in BEGUN}
    for item in lost:
        job, has_begun = (jobs or {}).get(item.job_id or ""), item.job_id in begun
        known = job is not None and may_be_of(job.name, item)
        if known or (jobs is None and not has_begun and is_there(_log(item))):
            with suppress(DDLError):  # of another user, or at work after all: shown as it is
                _settle(item, job, has_begun)
    return [_renewed(item) if item in lost else item for item in entries]


def _renewed(item: Entry) -> Entry:
    """Return what the record says now, unless that still is as before."""
    found = replace(entry(item.spec, item.directory), queued=False)
    return item if found.state == "submitted" or found.is_lost else found


def _settle(item: Entry, job: SlurmJob | None, begun: bool) -> None:
    """Let the record say why a run ended, or did not begin, in a job that had `begun` or not.

    `job` is None without accounting: only a run that did not begin is then settled.
    """

    def cause(record: RunRecord) -> Failure | None:
        at_work = record.status == "running"
        if record.status != "submitted" and not (job and at_work):
            return None
        state, exit_code = (job.state, job.exit_code) if job else ("", None)
        code = f" (exit code {exit_code})" if exit_code else ""
        ended_as = f"ended as {state}{code}" if job else "left the queue without a result,"
        text = f"job {item.job_id} {ended_as}"
        if not at_work:
            text += f" before the run began (log: logs/{_log(item).name})"
        text += tail(_log(item))
        kind = "Killed" if at_work else "NotStarted"
        category = classify(kind, text, exit_code=exit_code, state=state)
        if begun and not at_work and category not in INTERRUPTIONS:
            category = "cancelled"  # of its block only another run went wrong
        kind = INTERRUPTED if category in INTERRUPTIONS else kind
        return Failure(kind=kind, message=text, category=category)

    finish_idle_run(item.directory, item.job_id, cause)


def jobs_of(entries: list[Entry], run_ids: Sequence[str] = ()) -> list[Entry]:
    """Return the runs, of all or of some, that are open and have a job in the queue.

    `SpecError` if there is no such run, or if the end of its job would end others.
    """
    if unknown := sorted(set(run_ids) - {item.spec.run_id for item in entries}):
        raise SpecError(
            f"the study has no run {', '.join(unknown)}; `ddl study status` shows its runs"
        )
    if all(item.queued is None for item in entries):
        raise LaunchError("there is no squeue here; cancel on a login node of the SLURM cluster")
    alive = [item for item in entries if item.queued and item.state in ("submitted", "running")]
    chosen = [item for item in alive if not run_ids or item.spec.run_id in run_ids]
    jobs = numbers(chosen)
    if also := [item for item in alive if item.job_id in jobs and item not in chosen]:
        raise SpecError(
            f"a job executes a block of runs, and its end ends all of them; that of "
            f"{' and '.join(item.spec.run_id for item in chosen)} also has "
            f"{', '.join(item.spec.run_id for item in also)}: name these with --run as well "
            "(all of them can be submitted again), or let the job go on"
        )
    return chosen


def cancel(items: list[Entry]) -> None:
    """Cancel the jobs of some runs; write the records of those that are not at work."""

    def cause(record: RunRecord) -> Failure | None:
        again = record.error is not None and record.error.kind == INTERRUPTED  # for its next turn
        return CANCELLED if record.status == "submitted" or again else None

    if items:
        slurm_cli.call("scancel", *numbers(items))
    for item in items:
        with suppress(LaunchError):  # it has just begun, and will say by itself that it was stopped
            finish_idle_run(item.directory, item.job_id, cause)
