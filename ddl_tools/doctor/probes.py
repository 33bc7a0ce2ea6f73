"""Probes: runs with ``work: probe``, whose ranks measure their host; here or as a job.

A probe has the launcher, the job script and the record of a run, so it sees the run's cores,
devices and interfaces. Its request is in ``probe.json``.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ddl_core.config import RunSpec
from ddl_core.errors import DDLError, LaunchError
from ddl_tools.launch import preflight, ranks
from ddl_tools.launch.diagnose import tail
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.slurm.reconcile import settle, with_queue
from ddl_tools.launch.slurm.script import JobPlan
from ddl_tools.launch.slurm.site import Site
from ddl_tools.launch.slurm.submit import submit_job
from ddl_tools.records.ledger import Entry, entry, finish_idle_run
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.probe import ProbeRecord, read_probe, write_probe
from ddl_tools.records.run import Failure, RunRecord, read_record, write_record

QUEUE_POLL_S = 2.0
# A shared file system may show a job's last act only seconds after it has left the queue.
GRACE_S = 15.0


def probe_name(spec: RunSpec, site: str | None) -> str:
    """Return a name for a probe that begins now: where, nodes x ranks, time."""
    return f"{site or 'here'}-{spec.nodes}x{spec.gpus_per_node}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"


def plan_probe(directory: Path, record: ProbeRecord) -> None:
    """Write the records of a probe that is to be made."""
    preflight.check_room(directory)
    write_probe(directory, record)
    write_record(directory, RunRecord.plan("probes", record.spec, record.data_dir))


def run_probe(directory: Path, on_step: Callable[[str], None]) -> ProbeRecord:
    """Make a planned probe; return its record, which holds the error of one that failed."""
    try:
        ranks.run_ranks(directory, lambda now: on_step(now.get("stage") or now["phase"]))
    except DDLError:
        if read_record(directory).status != "failed":
            raise
    return read_probe(directory)


def run_in_job(
    plan: JobPlan, site: Site, patience_s: float, on_state: Callable[[str], None]
) -> ProbeRecord:
    """Submit the job of a planned probe, and wait for its end for `patience_s`.

    The record is still ``planned`` if the job has not ended. An interrupt cancels the job.
    """
    (item,) = plan.runs
    directory = item.directory
    try:
        submit_job(plan, site)
        _wait(item, patience_s, on_state)
    except KeyboardInterrupt:
        if job_id := read_record(directory).job_id:
            with suppress(DDLError):
                slurm_cli.call("scancel", job_id)
        raise
    return read_probe(directory)


def read_settled(directory: Path) -> ProbeRecord:
    """Read a probe, after settling the record of one whose job has ended without a result."""
    if RunFiles(directory).record.exists():
        item = entry(read_record(directory).spec, directory)
        with suppress(LaunchError):  # SLURM does not answer
            (item,) = settle(with_queue([item], slurm_cli.queue()))
            if item.job_id and item.state == "interrupted":
                _wait(item, 2 * GRACE_S, lambda state: None)
    return read_probe(directory)


def _wait(item: Entry, patience_s: float, on_state: Callable[[str], None]) -> None:
    """Wait until the record says how the run ended, or its job is gone for `GRACE_S`."""
    deadline, gone = time.monotonic() + patience_s, None
    while time.monotonic() < deadline:
        item = entry(item.spec, item.directory)
        try:
            (item,) = settle(with_queue([item], slurm_cli.queue()))
            on_state(item.reason or item.state)
        except LaunchError as error:
            on_state(f"the state of job {item.job_id} is unknown: {error}")
        if item.state in ("completed", "failed") or item.category:
            return
        gone = (gone or time.monotonic()) if item.state == "interrupted" else None
        if gone and time.monotonic() - gone > GRACE_S:
            return _close(item)
        time.sleep(QUEUE_POLL_S)


def _close(item: Entry) -> None:
    """Let the record say that the job ended without a result."""
    log = RunFiles(item.directory).logs / f"slurm-{item.job_id}.log"
    cause = Failure.of(
        "NotStarted", f"job {item.job_id} left the queue without a result{tail(log)}"
    )
    with suppress(LaunchError):  # at work after all
        finish_idle_run(
            item.directory,
            item.job_id,
            lambda record: cause if record.status in ("submitted", "running") else None,
        )
