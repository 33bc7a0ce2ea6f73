"""Write down how a run ended whose job could not: it was killed, or its node was lost."""

from contextlib import suppress
from pathlib import Path

from ddl_core.errors import DDLError
from ddl_core.launch.diagnose import tail
from ddl_core.launch.slurm import scheduler
from ddl_core.launch.slurm.accounting import EndedJob, ended
from ddl_core.records.ending import amend
from ddl_core.records.failures import INTERRUPTIONS, classify
from ddl_core.records.ledger import INTERRUPTED, Entry, entry
from ddl_core.records.paths import RunFiles
from ddl_core.records.run import Failure, RunRecord


def settled(entries: list[Entry], queue: scheduler.Queue | None) -> list[Entry]:
    """Return the ledger as SLURM has it, after settling the records of jobs that are gone.

    Only what SLURM says has ended is settled, never what it merely does not know; and never a
    record that says by itself how its run ended. `queue` has to be asked after the ledger was read.
    """
    entries = scheduler.joined(entries, queue)
    lost = [item for item in entries if queue is not None and _is_lost(item)]
    jobs = ended([item.job_id for item in lost if item.job_id]) if lost else {}
    for item in lost:
        job = jobs.get(item.job_id or "")
        if job and job.name == scheduler.job_name(item.spec):
            with suppress(DDLError):  # of another user, or at work after all: shown as it is
                _settle(item, job)
    return [_renewed(item) if item in lost else item for item in entries]


def _renewed(item: Entry) -> Entry:
    """Return what the record says now, unless that still is as before."""
    found = entry(item.spec, item.directory)
    return item if found.state == "submitted" or _is_lost(found) else found


def _is_lost(item: Entry) -> bool:
    """Say whether a run has a job that is gone, and a record that does not say why it ended."""
    return item.state == "interrupted" and item.job_id is not None and item.category is None


def _settle(item: Entry, job: EndedJob) -> None:
    def cause(record: RunRecord) -> Failure | None:
        if record.status not in ("submitted", "running"):
            return None
        return _cause(record, job, RunFiles(item.directory).logs)

    amend(item.directory, item.job_id, cause)


def _cause(record: RunRecord, job: EndedJob, logs: Path) -> Failure:
    began = record.status == "running"
    when = "" if began else " before the run began"
    code = f" (exit code {job.exit_code})" if job.exit_code else ""
    text = f"job {record.job_id} ended as {job.state}{code}{when}"
    if job.state == "CANCELLED" and not began:
        text += ", by hand or because the job that it waited for failed"
    text += tail(logs / f"slurm-{record.job_id}.log")
    kind = "Killed" if began else "NotStarted"
    category = classify(kind, text, exit_code=job.exit_code, state=job.state)
    if category in INTERRUPTIONS:
        kind = INTERRUPTED
    return Failure(kind=kind, message=text, category=category)
