"""Cancelling the jobs of a study, with stand-ins for SLURM's programs."""

from pathlib import Path

import pytest

from ddl_tools.records.ledger import Entry, entry, exclusive, ledger, plan
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.run import Failure
from ddl_tools.study import Study
from tests.launch.running import change, ddl, study_file
from tests.launch.stand_ins import StandIns


@pytest.fixture
def study(tmp_path: Path, stand_ins: StandIns) -> tuple[Path, list[Entry]]:
    """Four runs: one waits, one waits for its next turn, one is at work, one is complete."""
    path = study_file(tmp_path, strategy="ddp", classes=[5, 6, 7, 8])
    runs = plan(Study.load(path), results())
    notice = Failure.of("Interrupted", "stopped at the notice")
    states = [("submitted", None), ("failed", notice), ("running", None), ("completed", None)]
    for number, (item, (status, error)) in enumerate(zip(runs, states, strict=True), start=1):
        change(item, status=status, error=error, job_id=str(number))
    lines = [
        f"{number}|ddl-{runs[number - 1].spec.run_id}|{state}|None\n"
        for number, state in ((1, "PENDING"), (2, "PENDING"), (3, "RUNNING"), (4, "COMPLETING"))
    ]
    stand_ins.add("squeue", "".join(lines))
    stand_ins.add("scancel")
    return path, ledger(Study.load(path), results())


def test_jobs_are_cancelled_and_those_that_wait_are_marked(
    study: tuple[Path, list[Entry]], stand_ins: StandIns
) -> None:
    path, runs = study
    before = [RunFiles(item.directory).record.read_bytes() for item in runs]
    with exclusive(RunFiles(runs[2].directory).lock, "the run"):
        done = ddl("study", "cancel", path, status=0)
    assert stand_ins.calls("scancel") == ["1 2 3"]
    for item in runs[:2]:
        found = entry(item.spec, item.directory)
        assert (found.state, found.category) == ("interrupted", "cancelled")
        assert "cancelled by `ddl study cancel`" in found.reason
        assert f"cancelled  {item.spec.run_id} (classes {item.spec.classes})  job" in done.output
    left = ddl("study", "cancel", path, "--dry-run")  # what is cancelled is over
    assert left.output.count("would cancel") == 1
    after = [RunFiles(item.directory).record.read_bytes() for item in runs]
    assert after[2:] == before[2:]  # the one at work says so itself, the complete one stays


def test_a_dry_run_or_a_machine_without_slurm_cancels_nothing(
    study: tuple[Path, list[Entry]], stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ddl("study", "cancel", study[0], "--dry-run")
    assert shown.output.count("would cancel, if in the queue: ") == 3
    assert stand_ins.calls("squeue") == []
    monkeypatch.setenv("PATH", str(stand_ins.folder / "nothing"))
    refused = ddl("study", "cancel", study[0], status=1)
    assert "there is no squeue here" in refused.output
    assert stand_ins.calls("scancel") == []
    assert ledger(Study.load(study[0]), results()) == study[1]


def test_one_run_alone(study: tuple[Path, list[Entry]], stand_ins: StandIns) -> None:
    path, runs = study
    ddl("study", "cancel", path, "--run", runs[1].spec.run_id, status=0)
    assert stand_ins.calls("scancel") == ["2"]
    unknown = ddl("study", "cancel", path, "--run", "nothing", status=1)
    assert "no run nothing; `ddl study status`" in unknown.output
