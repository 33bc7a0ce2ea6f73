"""A job's script, executed by bash with stand-ins for srun and scontrol: no SLURM is involved.

What is shown: the script starts the notebook, which starts the ranks through srun; and what the
notice before the time limit does to the run and its record.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddl_core.errors import STOPPED, LaunchError
from ddl_tools.launch.commands import Allocation
from ddl_tools.launch.slurm import job
from ddl_tools.launch.slurm.script import JobPlan, render
from ddl_tools.launch.slurm.site import find_site
from ddl_tools.launch.study import pending
from ddl_tools.records.ledger import entry, finish_run, is_locked
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import Attempt, Failure, RunRecord, read_record
from ddl_tools.records.storage import now
from tests.launch.running import (
    ENDLESS,
    change,
    injected,
    is_training,
    planned,
    processes_of,
    wait_for,
)
from tests.launch.stand_ins import SRUN, StandIns

JOB = str(os.getpid())  # a job's ranks meet at a port that follows from it


@pytest.fixture
def slurm(stand_ins: StandIns) -> StandIns:
    stand_ins.python("srun", SRUN)
    stand_ins.add("scontrol", "127.0.0.1\n")
    return stand_ins


@contextmanager
def begun(run_dir: Path) -> "Iterator[subprocess.Popen[str]]":
    """Execute the script of a run as a job of one node would; it is ended with the block."""
    script = RunFiles(run_dir).script
    plan = JobPlan().of([entry(read_record(run_dir).spec, run_dir)])
    script.write_text(render(plan, find_site("localtest")))
    values = {
        "SLURM_JOB_ID": JOB,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_CPUS_PER_TASK": "1",
        "TMPDIR": str(run_dir),  # for the caches
    }
    with subprocess.Popen(
        ["bash", str(script)],
        env={**os.environ, **values},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.notebook
@pytest.mark.multiprocess
def test_the_script_completes_its_run(slurm: StandIns) -> None:
    run_dir = planned(strategy="ddp")
    with begun(run_dir) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    record = read_record(run_dir)
    assert record.status == "completed"
    assert record.provenance is not None
    assert record.provenance["scheduler"]["SLURM_JOB_ID"] == JOB
    assert injected(RunFiles(run_dir).notebook)["strategy"] == "ddp"
    assert list(RunFiles(run_dir).logs.glob("attempt_0/srun/attempt_0/0/stderr.log"))
    assert slurm.calls("scontrol") == ["show hostnames n1"]
    assert job.main([str(run_dir)]) == 0  # SLURM may start a job again that was done
    assert read_record(run_dir) == record


def noticed(run_dir: Path, ready: Callable[[int], Any]) -> int:
    """Send a job the notice of its time limit once `ready`; return its exit status."""
    with begun(run_dir) as process:
        wait_for(lambda: ready(process.pid), "the moment")
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=120)
    assert processes_of(run_dir) == []
    return process.returncode


@pytest.mark.notebook
@pytest.mark.multiprocess
def test_the_notice_before_the_limit_ends_the_run_so_that_it_can_go_on(slurm: StandIns) -> None:
    run_dir = planned(**{**ENDLESS, "train_images": 32, "checkpoint_every": 1}, strategy="ddp")
    assert noticed(run_dir, lambda _: RunFiles(run_dir).checkpoint.exists()) == STOPPED
    record = read_record(run_dir)
    item = entry(record.spec, run_dir)
    assert item.reason == f"Interrupted: {job.STOPPED_AT_LIMIT}"
    assert (item.state, item.category, item.job_id) == ("interrupted", "time_limit", JOB)
    assert record.attempts[-1].error == record.error
    assert pending([item]) == [item]
    assert slurm.calls("scontrol")[-1] == f"requeue {JOB}"


@pytest.mark.notebook
@pytest.mark.multiprocess
def test_a_notice_before_the_run_has_begun_leaves_it_as_it_was(slurm: StandIns) -> None:
    run_dir = planned(**{**ENDLESS, "checkpoint_every": 1}, strategy="ddp")
    before = RunFiles(run_dir).record.read_bytes()
    assert noticed(run_dir, job_process) > 128
    assert slurm.calls("scontrol")[-1] == f"requeue {JOB}"
    assert RunFiles(run_dir).record.read_bytes() == before


def job_process(script: int) -> bool:
    """Say whether a script has started its program, which takes a second to import the rest."""
    for child in psutil.Process(script).children():
        with suppress(psutil.Error):  # one that has just ended says nothing any more
            if "ddl_tools.launch.slurm.job" in child.cmdline():
                return True
    return False


@pytest.mark.notebook
@pytest.mark.multiprocess
@pytest.mark.extended
def test_a_run_does_not_outlive_its_killed_script(slurm: StandIns) -> None:
    run_dir = planned(**ENDLESS, strategy="ddp")
    with begun(run_dir):
        wait_for(lambda: is_training(run_dir), "the first step", seconds=200)
    wait_for(lambda: not is_locked(run_dir), "the run to end")
    item = entry(read_record(run_dir).spec, run_dir)
    assert item.state == "interrupted"
    assert pending([item]) == [item]  # it was stopped: nothing of its own went wrong
    assert processes_of(run_dir) == []


class Runs:
    """Three runs of a job, whose execution is played: each begins, then does as it is told."""

    def __init__(self, folder: Path) -> None:
        self.dirs = [planned(repeat=number) for number in range(3)]
        self.acts: dict[Path, str] = {}
        self.begun: list[tuple[int, str | None, int | None]] = []
        for one in self.dirs:
            self.set(one, "submitted")

    def set(self, run_dir: Path, status: str, error: Failure | None = None) -> None:
        change(run_dir, status=status, error=error, job_id="17")

    def execute(self, run_dir: Path) -> RunRecord:
        job = Allocation.current()
        assert job is not None
        self.begun.append((self.dirs.index(run_dir), job.block, job.place))
        before = read_record(run_dir).attempts
        change(run_dir, attempts=[*before, Attempt(started_utc=now())])
        act = self.acts.get(run_dir, "complete")
        if act == "complete":
            self.set(run_dir, "completed")
        elif act == "fail":
            self.set(run_dir, "failed", Failure.of("DataError", "its own"))
            raise LaunchError("its own")
        elif act.startswith("SIG"):
            finish_run(run_dir, Failure.of("Interrupted", "stopped"))
            os.kill(os.getpid(), signal.Signals[act])
        return read_record(run_dir)

    def start(self) -> int:
        """Let the job start; return its exit status."""
        self.begun.clear()
        return job.main([str(one) for one in self.dirs])

    @property
    def numbers(self) -> list[int]:
        return [number for number, _, _ in self.begun]

    def states(self) -> list[tuple[str, str | None]]:
        """Return state and class of each run, as its record has it."""
        items = [entry(read_record(one).spec, one) for one in self.dirs]
        return [(item.state, item.category) for item in items]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    found = Runs(tmp_path)
    monkeypatch.setattr(job, "run_one", found.execute)
    values = {"JOB_ID": "17", "JOB_NAME": "ddl-small-1x1-r0", "JOB_NUM_NODES": "1"}
    for name, value in values.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for name in ("DDL_BLOCK", "DDL_PLACE"):
        monkeypatch.setenv(name, "")  # what a job sets goes with the test
        monkeypatch.delenv(name)
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.setenv("DDL_SRUN", "srun")
    return found


def test_a_block_is_executed_in_its_order_and_what_is_complete_keeps_its_place(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.dirs.reverse()
    assert runs.start() == 0
    assert runs.begun == [(place, "ddl-small-1x1-r0-job17.0", place) for place in range(3)]
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    runs.set(runs.dirs[1], "submitted")
    assert runs.start() == 0
    assert runs.begun == [(1, "ddl-small-1x1-r0-job17.1", 1)]


def test_a_limit_too_short_for_an_epoch_is_a_failure_and_not_tried_for_ever(runs: Runs) -> None:
    del runs.dirs[1:]
    runs.acts = {runs.dirs[0]: "SIGUSR1"}
    assert runs.start() == 1  # with which a script asks for no other start
    item = entry(read_record(runs.dirs[0]).spec, runs.dirs[0])
    assert (item.state, item.category) == ("failed", "time_limit")
    assert "give it more with --time" in item.reason
    assert pending([item]) == []


DONE, LIMIT, STOPPED_BY_HAND = (
    ("completed", None),
    ("interrupted", "time_limit"),
    ("interrupted", "cancelled"),
)


@pytest.mark.parametrize(
    ("acts", "status", "states", "again"),
    [
        # A run that fails stops no other; started again by SLURM, the job tries it again.
        ({1: "fail"}, 1, [DONE, ("failed", "data"), DONE], [1]),
        # The notice stops the block, which goes on with what is left.
        ({0: "fail", 1: "SIGUSR1"}, STOPPED, [("failed", "data"), LIMIT, LIMIT], [1, 2]),
        # A run that had all of the time fails alone.
        ({0: "SIGUSR1"}, STOPPED, [("failed", "time_limit"), LIMIT, LIMIT], [1, 2]),
        ({1: "SIGTERM"}, STOPPED, [DONE, STOPPED_BY_HAND, STOPPED_BY_HAND], [1, 2]),
    ],
)
def test_what_ends_one_run_of_a_block_and_what_the_job_does_when_it_is_started_again(
    runs: Runs, acts: dict[int, str], status: int, states: list[Any], again: list[int]
) -> None:
    runs.acts = {runs.dirs[number]: act for number, act in acts.items()}
    assert runs.start() == status
    assert runs.states() == states
    runs.acts = {}
    assert runs.start() == 0
    assert runs.numbers == again


def test_an_unreadable_record_is_named(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    RunFiles(runs.dirs[1]).record.write_text(json.dumps({"schema_version": 0}))
    assert runs.start() == 1
    assert str(runs.dirs[1]) in capsys.readouterr().err
    assert runs.begun == []
