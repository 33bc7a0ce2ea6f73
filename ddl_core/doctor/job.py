"""Make a probe as a short job, where this machine is a login node, and wait for it."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ddl_core.errors import DDLError, LaunchError
from ddl_core.launch.diagnose import tail
from ddl_core.launch.slurm import scheduler
from ddl_core.records.paths import ProbeFiles
from ddl_core.records.probe import ProbeRecord, read_probe, write_probe
from ddl_core.records.run import Failure, write_atomically

POLL_S = 2.0
# A shared file system may show a job's last act only seconds after it has left the queue.
GRACE_S = 15.0


def submit(directory: Path, script: str) -> str:
    """Submit the job of a planned probe; return its number.

    Raises
    ------
    LaunchError, RecordError
        If SLURM refuses, or a file cannot be written; then no job is left.
    """
    files = ProbeFiles(directory)
    write_atomically(files.script, script)
    record = read_probe(directory)
    with scheduler.held(files.script, record.name) as job_id:
        write_probe(directory, record.model_copy(update={"job_id": job_id}))
    return job_id


def wait(
    directory: Path, job_id: str, patience_s: float, on_state: Callable[[str], None]
) -> ProbeRecord:
    """Wait until a probe has ended, its job is gone, or the patience is at its end.

    Returns
    -------
    ProbeRecord
        Still ``planned`` if the job waits in the queue, or is at work.

    Raises
    ------
    KeyboardInterrupt
        If this process was interrupted; the job was cancelled.
    """
    deadline, gone = time.monotonic() + patience_s, None
    try:
        while time.monotonic() < deadline:
            if (record := read_probe(directory)).status != "planned":
                return record
            job = _queued(job_id)
            on_state(f"job {job_id} {job}" if job else f"job {job_id} has left the queue")
            gone = None if job else gone or time.monotonic()
            if gone and time.monotonic() - gone > GRACE_S:
                return _lost(directory, job_id)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        with suppress(DDLError):
            scheduler.cancel(job_id)
        raise
    return read_probe(directory)


def _queued(job_id: str) -> str | None:
    """Return the state of a job; None once it has left the queue."""
    try:
        job = (scheduler.queue() or {}).get(job_id)
    except LaunchError as error:
        return f"unknown: {error}"
    return f"{job.state} ({job.reason})" if job else None


def _lost(directory: Path, job_id: str) -> ProbeRecord:
    """Say in the record that the job ended without a result."""
    log = ProbeFiles(directory).logs / f"slurm-{job_id}.log"
    text = f"job {job_id} left the queue without a result"
    record = read_probe(directory)
    if record.status == "planned":
        cause = Failure.of("NotStarted", text + tail(log))
        record = record.model_copy(update={"status": "failed", "error": cause})
        write_probe(directory, record)
    return record
