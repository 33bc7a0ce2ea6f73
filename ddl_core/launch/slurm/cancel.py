"""Cancel the jobs of a study, and say so in the records of those that had not started."""

from collections.abc import Sequence
from contextlib import suppress

from ddl_core.errors import LaunchError, SpecError
from ddl_core.launch.slurm import scheduler
from ddl_core.records.ending import amend
from ddl_core.records.ledger import INTERRUPTED, Entry
from ddl_core.records.run import Failure, RunRecord

CAUSE = Failure.of(INTERRUPTED, "cancelled by `ddl study cancel` before its start")


def jobs_of(entries: list[Entry], run_ids: Sequence[str] = ()) -> list[Entry]:
    """Return the runs that have a job in the queue, of all or of some runs.

    That of a complete run is not among them: it only finishes the lab book.

    Raises
    ------
    SpecError
        If there is no such run.
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
    chosen = [item for item in entries if not run_ids or item.spec.run_id in run_ids]
    alive = [item for item in chosen if scheduler.queued(item, queue) and item.state != "completed"]
    return scheduler.joined(alive, queue)


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
    scheduler.cancel(*(item.job_id for item in items if item.job_id))
    for item in items:
        with suppress(LaunchError):  # it has just begun, and will say by itself that it was stopped
            amend(item.directory, item.job_id, _cause)


def _cause(record: RunRecord) -> Failure | None:
    """Return the reason, unless a run is at work or ended for another one."""
    again = record.error is not None and record.error.kind == INTERRUPTED  # for its next turn
    return CAUSE if record.status == "submitted" or again else None
