"""What is written about a run whose job could not do it itself; `sacct` is a stand-in.

Its answers follow its manual.
"""

import pytest

from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.slurm.reconcile import settle, with_queue
from ddl_tools.launch.slurm.slurm_cli import SlurmJob, ended
from ddl_tools.records.ledger import Entry, entry, exclusive
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import Attempt, Status, read_record
from ddl_tools.records.storage import now
from tests.launch.running import change, error_of, planned
from tests.launch.stand_ins import StandIns

CANCELLED = "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-01-01T00:00:00"


def left(status: Status) -> Entry:
    """Return a run whose job 17 is gone and whose record has this status."""
    run_dir = planned()
    begun = [Attempt(started_utc=now(), status=status)] if status != "submitted" else []
    change(run_dir, status=status, job_id="17", attempts=begun)
    return entry(read_record(run_dir).spec, run_dir)


def says(stand_ins: StandIns, item: Entry, state: str, code: str = "0:0") -> None:
    """Let accounting say how the job ended."""
    stand_ins.add("sacct", f"17|ddl-{item.spec.run_id}|{state}|{code}\n")


def logged(item: Entry, text: str) -> None:
    """Let the job have a log."""
    log = RunFiles(item.directory).logs / "slurm-17.log"
    log.parent.mkdir()
    log.write_text(text)


def no_accounting(stand_ins: StandIns) -> None:
    stand_ins.add("sacct", error="Slurm accounting storage is disabled\n", status=1)


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
    (after,) = settle(with_queue([item], {}))
    assert (after.state, after.category) == (found, category)
    error = error_of(item.directory)
    assert error.message.startswith(f"job 17 ended as {state}")
    assert ("before the run began" in error.message) == (status == "submitted")
    for attempt in read_record(item.directory).attempts:
        assert (attempt.status, attempt.error) == ("failed", error)
        assert attempt.ended_utc is not None
    assert settle(with_queue([after], {})) == [after]
    assert len(stand_ins.calls("sacct")) == 1  # what is settled is not asked for again


def test_the_jobs_own_log_is_shown_and_heeded(stand_ins: StandIns) -> None:
    item = left("running")
    logged(item, "slurmstepd: error: Detected 1 oom_kill event in StepId=17.batch.\n")
    says(stand_ins, item, "FAILED", "0:9")
    (after,) = settle(with_queue([item], {}))
    assert after.category == "out_of_memory"
    assert "last lines of logs/slurm-17.log" in after.reason


def unchanged(item: Entry, queue: slurm_cli.Queue | None) -> bool:
    before = RunFiles(item.directory).record.read_bytes()
    settle(with_queue([item], queue))
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


def test_a_run_that_is_at_work_or_ended_by_itself_is_left_alone(stand_ins: StandIns) -> None:
    item = left("running")
    stand_ins.add("sacct", "17|other|NODE_FAIL|0:0\n")  # another one's job of that number
    assert unchanged(item, {})
    says(stand_ins, item, "NODE_FAIL")
    with exclusive(RunFiles(item.directory).lock, "the run"):
        assert unchanged(item, {})
    change(item, status="completed")
    assert unchanged(item, {})
    assert settle(with_queue([item], {}))[0].state == "completed"


def test_accounting_is_asked_once_for_all(stand_ins: StandIns) -> None:
    rows = "17|ddl-a|CANCELLED by 1000|0:15\n18|ddl-b|TIMEOUT|0:0\n19|ddl-c|RUNNING|0:0\n\n"
    stand_ins.add("sacct", rows)
    assert ended(["17", "18", "19"]) == {
        "17": SlurmJob("ddl-a", "CANCELLED", exit_code=-15),
        "18": SlurmJob("ddl-b", "TIMEOUT", exit_code=0),
    }
    (call,) = stand_ins.calls("sacct")
    assert call.endswith("--allocations --jobs 17,18,19")


@pytest.mark.parametrize(
    ("log", "found", "category"),
    [
        ("Lmod: unknown module\n", "failed", "environment"),
        ("", "failed", "environment"),
        (f"{CANCELLED} ***\n", "interrupted", "cancelled"),
        (f"{CANCELLED} DUE TO TIME LIMIT ***\n", "interrupted", "time_limit"),
    ],
)
def test_without_accounting_the_log_tells_why_a_run_did_not_begin(
    stand_ins: StandIns, log: str, found: str, category: str
) -> None:
    item = left("submitted")
    logged(item, log)
    no_accounting(stand_ins)
    (after,) = settle(with_queue([item], {}))
    assert (after.state, after.category) == (found, category)
    message = error_of(item.directory).message
    assert "before the run began" in message
    assert "logs/slurm-17.log" in message
    assert log.strip() in message
    assert settle(with_queue([after], {})) == [after]


def test_an_answer_of_accounting_that_is_late_is_waited_for(stand_ins: StandIns) -> None:
    item = left("submitted")
    logged(item, "Lmod: unknown module\n")
    says(stand_ins, item, "RUNNING")
    assert unchanged(item, {})


def test_a_job_that_wrote_no_log_has_not_failed(stand_ins: StandIns) -> None:
    item = left("submitted")
    no_accounting(stand_ins)
    assert unchanged(item, {})
    (after,) = settle(with_queue([item], {}))
    assert after.state == "interrupted"
    assert str(RunFiles(item.directory).logs / "slurm-17.log") in after.reason


def test_without_accounting_a_run_can_be_submitted_again(stand_ins: StandIns) -> None:
    item = left("running")
    logged(item, "from before\n")
    no_accounting(stand_ins)
    assert unchanged(item, {})
    assert settle(with_queue([item], {}))[0].state == "interrupted"
