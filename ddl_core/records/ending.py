"""Write into a record why its run ended badly; a complete one is never touched."""

from collections.abc import Callable
from pathlib import Path

from ddl_core.records.ledger import exclusive
from ddl_core.records.paths import RunFiles
from ddl_core.records.run import Attempt, Failure, RunRecord, now, read_record, write_record


def mark_failed(directory: Path, cause: Failure) -> None:
    """Write into the record of a run why it failed, unless it is complete."""
    record = read_record(directory)
    if record.status == "completed":
        return
    record.status, record.error = "failed", cause
    if record.attempts and record.attempts[-1].status == "running":
        _close(record.attempts[-1], cause)
    write_record(directory, record)


def restate(directory: Path, cause: Failure) -> None:
    """Replace why a run failed, also in its last attempt where that gives the same cause."""
    record = read_record(directory)
    if record.status == "completed":
        return
    if record.attempts and record.attempts[-1].error == record.error:
        _close(record.attempts[-1], cause)
    record.status, record.error = "failed", cause
    write_record(directory, record)


def _close(attempt: Attempt, cause: Failure) -> None:
    attempt.status, attempt.error = "failed", cause
    attempt.ended_utc = attempt.ended_utc or now()


def amend(run_dir: Path, job_id: str | None, cause: Callable[[RunRecord], Failure | None]) -> None:
    """Mark a run as failed by what `cause` makes of its record, unless that is None.

    Raises
    ------
    LaunchError
        If a process is at work on the run.
    RecordError
        If the record cannot be read or written.
    """
    with exclusive(RunFiles(run_dir).lock, f"run {run_dir.name}"):
        record = read_record(run_dir)
        if record.job_id == job_id and (found := cause(record)):
            mark_failed(run_dir, found)
