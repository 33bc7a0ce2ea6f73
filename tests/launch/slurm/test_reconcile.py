"""What is written about a run whose job could not do it itself; `sacct` is a stand-in.

Its answers follow its manual.
"""

import pytest

from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.slurm.reconcile import reconciled
from ddl_tools.launch.slurm.slurm_cli import EndedJob, ended
from ddl_tools.records.ledger import Entry, entry, exclusive
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import Attempt, Status, read_record, write_record
from ddl_tools.records.storage import now
from tests.launch.running import planned
from tests.launch.stand_ins import StandIns


def left(status: Status) -> Entry:
    """Return a run whose job 17 is gone and whose record has this status."""
    run_dir = planned()
    record = read_record(run_dir)
    record.status, record.job_id = status, "17"
    if status != "submitted":
        record.attempts.append(Attempt(started_utc=now(), status=status))
    write_record(run_dir, record)
    return entry(record.spec, run_dir)


def says(stand_ins: StandIns, item: Entry, state: str, code: str = "0:0") -> None:
    """Let accounting say how the job ended."""
    stand_ins.add("sacct", f"17|ddl-{item.spec.run_id}|{state}|{code}\n")


@pytest.mark.parametrize(
    ("status", "state", "code", "found", "category"),
    [
        ("running", "NODE_FAIL", "0:15", "interrupted", "node_failure"),
        ("running", "TIMEOUT", "0:15", "interrupted", "time_limit"),
        ("running", "CANCELLED", "0:9", "interrupted", "cancelled"),
        ("submitted", "CANCELLED", "0:0", "interrupted", "cancelled"),
        ("running", "PREEMPTED", "0:15", "interrupted", "cancelled"),
        ("running", "OUT_OF_MEMORY", "0:125", "failed", "out_of_memory"),
        ("running", "FAILED", "0:9", "failed", "killed"),
        ("submitted", "FAILED", "1:0", "failed", "environment"),
    ],
)
def test_a_job_that_is_gone_is_settled(
    stand_ins: StandIns, status: Status, state: str, code: str, found: str, category: str
) -> None:
    item = left(status)
    says(stand_ins, item, state, code)
    (after,) = reconciled([item], {})
    assert (after.state, after.category) == (found, category)
    record = read_record(item.directory)
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.message.startswith(f"job 17 ended as {state}")
    assert ("before the run began" in record.error.message) == (status == "submitted")
    for attempt in record.attempts:
        assert (attempt.status, attempt.error) == ("failed", record.error)
        assert attempt.ended_utc is not None
    assert reconciled([after], {}) == [after]
    assert len(stand_ins.calls("sacct")) == 1  # what is settled is not asked for again


def test_the_jobs_own_log_is_shown_and_heeded(stand_ins: StandIns) -> None:
    item = left("running")
    log = RunFiles(item.directory).logs / "slurm-17.log"
    log.parent.mkdir()
    log.write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=17.batch.\n")
    says(stand_ins, item, "FAILED", "0:9")
    (after,) = reconciled([item], {})
    assert after.category == "out_of_memory"
    assert "last lines of logs/slurm-17.log" in after.reason


def unchanged(item: Entry, queue: slurm_cli.Queue | None) -> bool:
    before = RunFiles(item.directory).record.read_bytes()
    reconciled([item], queue)
    return RunFiles(item.directory).record.read_bytes() == before


@pytest.mark.parametrize(
    ("status", "answer", "queue"),
    [
        *((status, "NODE_FAIL", {}) for status in ("completed", "failed", "planned")),
        *(("running", state, {}) for state in ("RUNNING", "PENDING", "COMPLETING", "REQUEUED")),
        ("running", "NODE_FAIL", None),  # no queue could be asked
    ],
)
def test_only_the_last_state_of_a_job_whose_record_is_open_counts(
    stand_ins: StandIns, status: Status, answer: str, queue: slurm_cli.Queue | None
) -> None:
    item = left(status)
    says(stand_ins, item, answer)
    assert unchanged(item, queue)


def test_a_run_that_ended_by_itself_meanwhile_is_shown_so(stand_ins: StandIns) -> None:
    item = left("running")
    says(stand_ins, item, "NODE_FAIL")
    write_record(
        item.directory, read_record(item.directory).model_copy(update={"status": "completed"})
    )
    assert unchanged(item, {})
    assert reconciled([item], {})[0].state == "completed"


def test_a_run_at_work_is_never_touched(stand_ins: StandIns) -> None:
    item = left("running")
    says(stand_ins, item, "NODE_FAIL")
    with exclusive(RunFiles(item.directory).lock, "the run"):
        assert unchanged(item, {})


def test_another_ones_job_of_that_number_tells_nothing(stand_ins: StandIns) -> None:
    item = left("running")
    stand_ins.add("sacct", "17|other|NODE_FAIL|0:0\n")
    assert unchanged(item, {})


def test_accounting_is_asked_once_for_all(stand_ins: StandIns) -> None:
    rows = "17|ddl-a|CANCELLED by 1000|0:15\n18|ddl-b|TIMEOUT|0:0\n19|ddl-c|RUNNING|0:0\n\n"
    stand_ins.add("sacct", rows)
    assert ended(["17", "18", "19"]) == {
        "17": EndedJob("ddl-a", "CANCELLED", -15),
        "18": EndedJob("ddl-b", "TIMEOUT", 0),
    }
    (call,) = stand_ins.calls("sacct")
    assert call.endswith("--allocations --jobs 17,18,19")


def test_without_accounting_a_run_can_be_submitted_again(stand_ins: StandIns) -> None:
    item = left("running")
    stand_ins.add("sacct", error="Slurm accounting storage is disabled\n", status=1)
    assert unchanged(item, {})
    assert reconciled([item], {})[0].state == "interrupted"
