"""The boundary to SLURM's programs, with stand-ins: arguments, answers, errors, time limits."""

from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.slurm.reconcile import with_queue
from ddl_tools.launch.slurm.slurm_cli import SlurmJob
from ddl_tools.records.ledger import Entry, State
from tests.launch.stand_ins import StandIns

SPEC = RunSpec()
NAME = f"ddl-{SPEC.run_id}"


def item(state: State, job_id: str | None = "17") -> Entry:
    return Entry(SPEC, Path("/run"), state, "why", job_id)


@pytest.mark.parametrize("answer", ["17\n", "17;cluster\n", "Welcome!\n17\n"])
def test_the_number_of_a_job_is_read(stand_ins: StandIns, answer: str) -> None:
    stand_ins.add("sbatch", answer)
    assert slurm_cli.submit(Path("/run/job.sh")) == "17"
    assert stand_ins.calls("sbatch") == ["--parsable /run/job.sh"]


def test_a_program_that_refuses_hangs_or_is_not_there_is_an_error(
    stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins.add("sbatch", error="sbatch: error: Invalid account\n", status=1)
    with pytest.raises(LaunchError, match=r"sbatch .*: sbatch: error: Invalid account$"):
        slurm_cli.submit(Path("/run/job.sh"))
    stand_ins.script("squeue", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(slurm_cli, "TIMEOUT_S", 0.2)
    with pytest.raises(LaunchError, match="squeue did not answer"):
        slurm_cli.queue()
    monkeypatch.setenv("PATH", str(stand_ins.folder / "nothing"))
    assert slurm_cli.queue() is None
    with pytest.raises(LaunchError, match="'sbatch' is not on PATH"):
        slurm_cli.submit(Path("/run/job.sh"))


def test_the_queue_is_read(stand_ins: StandIns) -> None:
    stand_ins.add("squeue", "17|ddl-a|PENDING|Priority\n18|ddl-b|RUNNING|None\n")
    assert slurm_cli.queue() == {
        "17": SlurmJob("ddl-a", "PENDING", "Priority"),
        "18": SlurmJob("ddl-b", "RUNNING", "None"),
    }
    assert stand_ins.calls("squeue") == ["--me --noheader --format=%A|%j|%T|%r"]


@pytest.mark.parametrize(
    ("recorded", "queued", "state"),
    [
        ("submitted", "PENDING", "submitted"),
        ("submitted", "RUNNING", "running"),
        ("interrupted", "RUNNING", "running"),
        ("failed", "PENDING", "submitted"),
        ("completed", "COMPLETING", "completed"),
    ],
)
def test_the_queue_knows_better(recorded: State, queued: str, state: State) -> None:
    (found,) = with_queue([item(recorded)], {"17": SlurmJob(NAME, queued, "Priority")})
    assert found.state == state
    assert found.reason == ("why" if state == "completed" else f"job 17 {queued} (Priority)")


def test_the_number_alone_does_not_make_it_our_job() -> None:
    (found,) = with_queue([item("submitted")], {"17": SlurmJob("other", "RUNNING", "None")})
    assert found.state == "interrupted"
