"""Bring records and SLURM's queue together: runs that wait, were cancelled, or ended unheard."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ddl_core.errors import DDLError, LaunchError, SpecError
from ddl_tools.launch.diagnose import tail
from ddl_tools.launch.slurm import scheduler
from ddl_tools.launch.slurm.scheduler import (
    HELD,
    RUNNING,
    EndedJob,
    Queue,
    QueuedJob,
    ended,
    release,
)
from ddl_tools.launch.slurm.script import job_name, may_be_of
from ddl_tools.records.failures import INTERRUPTIONS, classify
from ddl_tools.records.ledger import INTERRUPTED, Entry, State, entry, finish_idle_run
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import Failure, RunRecord


def settled(entries: list[Entry], queue: scheduler.Queue | None) -> list[Entry]:
    """Return the ledger as SLURM has it, after settling the records of jobs that are gone.

    Only what SLURM says has ended is settled, never what it merely does not know; and never a
    record that says by itself how its run ended. `queue` has to be asked after the ledger was read.
    """
    entries = joined(entries, queue)
    lost = [item for item in entries if queue is not None and _is_lost(item)]
    jobs = ended(numbers(lost)) if lost else {}
    begun = {item.job_id for item in entries if item.record and item.record.status in BEGUN}
    for item in lost:
        job = jobs.get(item.job_id or "")
        if job and may_be_of(job.name, item):
            with suppress(DDLError):  # of another user, or at work after all: shown as it is
                _settle(item, job, item.job_id in begun)
    return [_renewed(item) if item in lost else item for item in entries]


def numbers(items: Iterable[Entry]) -> list[str]:
    """Return the jobs of some runs, each once: the runs of a block share one."""
    return list(dict.fromkeys(item.job_id for item in items if item.job_id))


def _renewed(item: Entry) -> Entry:
    """Return what the record says now, unless that still is as before."""
    found = entry(item.spec, item.directory)
    return item if found.state == "submitted" or _is_lost(found) else found


def _is_lost(item: Entry) -> bool:
    """Say whether a run has a job that is gone, and a record that does not say why it ended."""
    return item.state == "interrupted" and item.job_id is not None and item.category is None


def _settle(item: Entry, job: EndedJob, begun: bool) -> None:
    def cause(record: RunRecord) -> Failure | None:
        if record.status not in ("submitted", "running"):
            return None
        return _cause(record, job, RunFiles(item.directory).logs, begun)

    finish_idle_run(item.directory, item.job_id, cause)


def _cause(record: RunRecord, job: EndedJob, logs: Path, begun: bool) -> Failure:
    """Return why a run ended, or did not begin, in a job that had `begun` with a run or not."""
    began = record.status == "running"
    when = "" if began else " before the run began"
    code = f" (exit code {job.exit_code})" if job.exit_code else ""
    text = f"job {record.job_id} ended as {job.state}{code}{when}"
    if job.state == "CANCELLED" and not began:
        text += ", by hand or because the job that it waited for failed"
    text += tail(logs / f"slurm-{record.job_id}.log")
    kind = "Killed" if began else "NotStarted"
    category = classify(kind, text, exit_code=job.exit_code, state=job.state)
    if not began and begun and category not in INTERRUPTIONS:
        category = "cancelled"  # of its block only another run went wrong
    if category in INTERRUPTIONS:
        kind = INTERRUPTED
    return Failure(kind=kind, message=text, category=category)


BEGUN = ("running", "completed", "failed")  # records of runs that their job has come to
CAUSE = Failure.of(INTERRUPTED, "cancelled by `ddl study cancel` before its start")


def jobs_of(entries: list[Entry], run_ids: Sequence[str] = ()) -> list[Entry]:
    """Return the runs that have a job in the queue, of all or of some runs.

    That of a complete run is not among them: it only finishes the lab book.

    Raises
    ------
    SpecError
        If there is no such run, or if its job would end others that are not among `run_ids`.
    LaunchError
        If SLURM is not there or does not answer.
    """
    known = {item.spec.run_id for item in entries}
    if unknown := sorted(set(run_ids) - known):
        raise SpecError(
            f"the study has no run {', '.join(unknown)}; `ddl study status` shows its runs"
        )
    queue = scheduler.queue()
    if queue is None:
        raise LaunchError("there is no squeue here; cancel on a login node of the SLURM cluster")
    alive = [item for item in entries if queued(item, queue)]
    alive = [item for item in joined(alive, queue) if item.state in ("submitted", "running")]
    chosen = [item for item in alive if not run_ids or item.spec.run_id in run_ids]
    jobs = numbers(chosen)
    also = [item for item in alive if item.job_id in jobs and item not in chosen]
    if also:
        raise SpecError(
            f"a job executes a block of runs, and its end ends all of them; that of "
            f"{' and '.join(item.spec.run_id for item in chosen)} also has "
            f"{', '.join(item.spec.run_id for item in also)}: name these with --run as well "
            "(all of them can be submitted again), or let the job go on"
        )
    return chosen


def cancel(items: list[Entry]) -> None:
    """Cancel the jobs of some runs.

    A run at work is told to stop and writes its own record; that of a run which waits is written
    here.

    Raises
    ------
    LaunchError
        If SLURM refuses.
    RecordError
        If a record cannot be written.
    """
    if not items:
        return
    scheduler.cancel(*numbers(items))
    for item in items:
        with suppress(LaunchError):  # it has just begun, and will say by itself that it was stopped
            finish_idle_run(item.directory, item.job_id, _cancelled)


def _cancelled(record: RunRecord) -> Failure | None:
    """Return the reason, unless a run is at work or ended for another one."""
    again = record.error is not None and record.error.kind == INTERRUPTED  # for its next turn
    return CAUSE if record.status == "submitted" or again else None


def release_held(entries: list[Entry], jobs: Queue | None) -> list[Entry]:
    """Let the runs start whose job SLURM holds since its start failed; return them.

    Raises
    ------
    LaunchError
        If that was refused.
    """
    held = [item for item in entries if (job := queued(item, jobs)) and job.reason == HELD]
    for job_id in numbers(held):
        release(job_id)
    return held


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
    return job if job and may_be_of(job.name, item) else None


def _joined(item: Entry, jobs: Queue | None) -> Entry:
    if item.job_id is None or jobs is None or item.state in ("completed", "damaged"):
        return item
    if job := queued(item, jobs):
        alone = job.name == job_name(item.directory.parent.name, [item.spec])
        if item.state == "failed" and not alone:
            return item  # its job is at work on the others of the block
        begun = job.state in RUNNING
        turn = alone or (item.record is not None and item.record.status == "running")
        shown = f"job {item.job_id} {job.state}"
        reason = f"{shown} ({job.reason})" if job.reason else shown
        if begun and not turn:
            reason = f"{shown} (its turn in the block comes later)"
        state: State = "running" if begun and turn else "submitted"
        return replace(item, state=state, reason=reason, category=None)
    if item.state == "submitted":
        log = f"logs/slurm-{item.job_id}.log of the run's folder"
        gone = f"job {item.job_id} left the queue without a result ({log}); submit it again"
        return replace(item, state="interrupted", reason=gone)
    return item
