"""The findings that follow from the record of a probe."""

from pathlib import Path

from ddl_core.doctor import placement, traffic
from ddl_core.doctor.finding import Finding
from ddl_core.records.probe import ProbeRecord


def judge(record: ProbeRecord, directory: Path) -> list[Finding]:
    """Return what a probe found; of one that failed, what its ranks could still tell.

    Parameters
    ----------
    record
        Of the probe.
    directory
        Its folder, for the messages.
    """
    found = [_answers(record, directory)]
    if record.answers:
        found += [*placement.judge(record), *traffic.judge(record)]
    return found


def _answers(record: ProbeRecord, directory: Path) -> Finding:
    hosts = len({one.host for one in record.answers})
    if record.status == "completed":
        return Finding("ranks", "ok", f"{record.spec.world_size} on {hosts} host(s), all answered")
    if record.status == "planned":
        job = f"job {record.job_id} has not ended" if record.job_id else "has not ended"
        return Finding("ranks", "unknown", job, f"later: ddl doctor --show {directory}")
    assert record.error is not None
    place = "" if record.error.rank is None else f"rank {record.error.rank}: "
    return Finding("ranks", "bad", place + record.error.message, f"logs in {directory / 'logs'}")
