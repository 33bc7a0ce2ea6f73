"""Start the ranks of a probe, here or as a short job, and keep what they found.

``python -m ddl_core.doctor.probe_run DIR`` has the same commands as a run, so that a probe sees the
cores, devices and interfaces of a run.
"""

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ddl_core import processes
from ddl_core.errors import STOPPED, DDLError, LaunchError
from ddl_core.launch import commands, diagnose, measuring, preflight, ranks, supervise
from ddl_core.launch.diagnose import tail
from ddl_core.launch.slurm import scheduler
from ddl_core.records.ledger import INTERRUPTED
from ddl_core.records.paths import ProbeFiles, Tree
from ddl_core.records.probe import Answer, ProbeRecord, read_answers, read_probe, write_probe
from ddl_core.records.provenance import host, provenance
from ddl_core.records.run import Failure
from ddl_core.records.storage import now, write_atomically
from ddl_core.spec.run import RunSpec

WORKER = "ddl_core.doctor.probe"
PROGRAM = "ddl_core.doctor.probe_run"
STALL_TIMEOUT_S = 120.0
START_TIMEOUT_S = 300.0  # many ranks import torch from one parallel file system
POLL_S = 0.25

QUEUE_POLL_S = 2.0
# A shared file system may show a job's last act only seconds after it has left the queue.
GRACE_S = 15.0


def probe_name(spec: RunSpec, site: str | None) -> str:
    """Return a name for a probe that begins now: where, nodes x ranks, time."""
    begun = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return f"{site or 'here'}-{spec.nodes}x{spec.gpus_per_node}-{begun}"


def plan_probe(tree: Tree, record: ProbeRecord) -> Path:
    """Write the record of a probe that is to be made; return its folder.

    Raises
    ------
    RecordError, LaunchError
        If there is no place for it.
    """
    preflight.check_room(tree.root)
    directory = tree.probes / record.name
    ProbeFiles(directory).logs.mkdir(parents=True, exist_ok=True)  # SLURM makes none for its log
    write_probe(directory, record)
    return directory


def command(spec: RunSpec, directory: Path, worker: str = WORKER) -> commands.Command:
    """Return what starts the ranks of a probe."""
    return commands.command(spec, worker, directory, _logs(directory))


def run_probe(
    directory: Path,
    on_step: Callable[[str], None] = lambda _: None,
    stall_timeout: float | None = None,
    worker: str = WORKER,
) -> ProbeRecord:
    """Make a planned probe; return its record, which says what failed if something did.

    Parameters
    ----------
    directory
        Of the probe.
    on_step
        Called with what rank 0 is doing.
    stall_timeout
        Seconds without a new step of any rank after which they are ended; by default the
        environment variable ``DDL_STALL_TIMEOUT``, else 120. Until all have begun it is at least
        300.
    worker
        Module that each rank executes.

    Raises
    ------
    RecordError
        If the record cannot be read or written.
    KeyboardInterrupt
        If this process was interrupted, once all ranks are gone and the record says so.
    """
    directory = directory.resolve()
    record = read_probe(directory)
    limit = stall_timeout or ranks.stall_limit_s(STALL_TIMEOUT_S)
    with processes.stoppable(), measuring.alone(f"probe {directory.name}"):
        try:
            cause = _execute(record.spec, directory, worker, on_step, limit)
        except KeyboardInterrupt as error:
            with processes.undisturbed():
                text = f"stopped by {str(error) or 'the user'} before its end"
                _keep(directory, record, Failure.of(INTERRUPTED, text))
            raise
        except DDLError as error:
            cause = Failure.of(type(error).__name__, str(error))
    return _keep(directory, record, cause)


def _execute(
    spec: RunSpec, directory: Path, worker: str, on_step: Callable[[str], None], limit: float
) -> Failure | None:
    cause, exit_code = supervise.execute(
        command(spec, directory, worker),
        _logs(directory),
        commands.environment(spec),
        lambda launcher: _watch(launcher, directory, on_step, limit),
    )
    if len(_done(read_answers(directory))) == spec.world_size:
        return None
    return cause or diagnose.diagnose(ProbeFiles(directory), _logs(directory), exit_code)


def _watch(
    launcher: supervise.Launcher, directory: Path, on_step: Callable[[str], None], limit: float
) -> str | None:
    world_size = read_probe(directory).spec.world_size
    seen, since = _steps(directory), time.monotonic()
    while launcher.poll() is None:
        time.sleep(POLL_S)
        latest = _steps(directory)
        if latest != seen:
            seen, since = latest, time.monotonic()
            on_step(latest.get(0, "start"))
        patience = limit if len(seen) == world_size else max(limit, START_TIMEOUT_S)
        if time.monotonic() - since > patience:
            return f"no progress for {patience:.0f} s: {_standing(seen, world_size)}"
    return None


def _steps(directory: Path) -> dict[int, str]:
    return {answer.rank: answer.step for answer in read_answers(directory)}


def _done(answers: list[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer.step == "done"]


def _standing(steps: dict[int, str], world_size: int) -> str:
    """Return which ranks have not begun, and at what step the others stand."""
    silent = [str(rank) for rank in range(world_size) if rank not in steps]
    texts = [f"rank(s) {', '.join(silent)} never began"] if silent else []
    for name in dict.fromkeys(steps.values()):
        there = ", ".join(str(rank) for rank, where in sorted(steps.items()) if where == name)
        texts.append(f"rank(s) {there} at {name!r}")
    return "; ".join(texts)


def _keep(directory: Path, record: ProbeRecord, cause: Failure | None) -> ProbeRecord:
    """Gather the answers of all ranks in the record."""
    kept = record.model_copy(
        update={
            "status": "failed" if cause else "completed",
            "error": cause,
            "ended_utc": now(),
            "answers": read_answers(directory),
            "provenance": provenance(),
            "system": host(),
        }
    )
    write_probe(directory, kept)
    return kept


def _logs(directory: Path) -> Path:
    return ProbeFiles(directory).logs / "attempt_0"


def submit_probe(directory: Path, script: str) -> str:
    """Submit the job of a planned probe; return its number.

    Raises
    ------
    LaunchError, RecordError
        If SLURM refuses, or a file cannot be written.
    KeyboardInterrupt
        If this process was interrupted; the job was cancelled.
    """
    files = ProbeFiles(directory)
    write_atomically(files.script, script)
    record, job_id = read_probe(directory), ""
    try:
        with processes.uninterrupted():
            job_id = scheduler.submit(files.script)
            if read_probe(directory) == record:
                write_probe(directory, record.model_copy(update={"job_id": job_id}))
    except KeyboardInterrupt:
        if job_id:
            with suppress(DDLError):
                scheduler.cancel(job_id)
        raise
    return job_id


def wait_for_probe(
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
            time.sleep(QUEUE_POLL_S)
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


def main(arguments: list[str]) -> int:
    """Make one probe, inside its job; return the exit status."""
    if len(arguments) != 1:
        sys.stderr.write(f"usage: python -m {PROGRAM} PROBE_DIR\n")
        return 2
    try:
        with processes.stoppable(signal.SIGUSR1):  # the job's notice of its time limit
            record = run_probe(Path(arguments[0]))
    except DDLError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return STOPPED
    sys.stderr.write(f"{record.name}: {record.status}\n")
    return 0 if record.status == "completed" else 1


if __name__ == "__main__":
    # SLURM may end a script and not what it started.
    processes.die_with_parent(number=signal.SIGTERM)
    sys.exit(main(sys.argv[1:]))
