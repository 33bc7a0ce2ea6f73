"""A job's script, executed by bash with stand-ins for srun and scontrol: no SLURM is involved.

What is shown: the script starts the notebook, which starts the ranks through srun; and what the
notice before the time limit does to the run and its record.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ddl_core.errors import STOPPED
from ddl_core.launch.plan import pending
from ddl_core.launch.slurm import job
from ddl_core.launch.slurm.script import Options, Place, render
from ddl_core.launch.slurm.site import find_site
from ddl_core.records.ledger import entry, is_locked
from ddl_core.records.paths import PROJECT, RunFiles
from ddl_core.records.run import read_record
from tests.launch.running import ENDLESS, is_training, planned, processes_of, wait_for
from tests.launch.stand_ins import SRUN, StandIns


@pytest.fixture
def slurm(stand_ins: StandIns) -> StandIns:
    stand_ins.script("srun", f"#!{sys.executable}\n{SRUN}")
    stand_ins.add("scontrol", "127.0.0.1\n")
    return stand_ins


def begin(run_dir: Path) -> "subprocess.Popen[str]":
    """Execute the script of a run as a job of one node would."""
    spec = read_record(run_dir).spec
    script = RunFiles(run_dir).script
    place = Place(run_dir, PROJECT, sys.executable)
    script.write_text(render(spec, find_site("localtest"), Options(), place))
    values = {
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_CPUS_PER_TASK": "1",
        "TMPDIR": str(run_dir),  # for the caches
    }
    return subprocess.Popen(
        ["bash", str(script)],
        env={**os.environ, **values},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.notebook
@pytest.mark.multiprocess
def test_the_script_completes_its_run(slurm: StandIns) -> None:
    run_dir = planned(strategy="ddp")
    output, _ = (process := begin(run_dir)).communicate(timeout=120)
    assert process.returncode == 0, output
    record = read_record(run_dir)
    assert record.status == "completed"
    assert record.provenance is not None
    assert record.provenance["scheduler"]["SLURM_JOB_ID"] == "17"
    assert RunFiles(run_dir).notebook.exists()
    assert list(RunFiles(run_dir).logs.glob("attempt_0/srun/attempt_0/0/stderr.log"))
    assert slurm.calls("scontrol") == ["show hostnames n1"]
    assert job.main([str(run_dir)]) == 1  # a second time is refused


@pytest.mark.notebook
@pytest.mark.multiprocess
def test_the_notice_before_the_limit_ends_the_run_so_that_it_can_go_on(slurm: StandIns) -> None:
    run_dir = planned(**{**ENDLESS, "train_images": 32, "checkpoint_every": 1}, strategy="ddp")
    process = begin(run_dir)
    try:
        wait_for(RunFiles(run_dir).checkpoint.exists, "the first checkpoint")
        process.send_signal(signal.SIGUSR1)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == STOPPED, output
    record = read_record(run_dir)
    item = entry(record.spec, run_dir)
    assert item.reason == f"Interrupted: {job.GOES_ON}"
    assert (item.state, item.category, item.job_id) == ("interrupted", "time_limit", "17")
    assert record.attempts[-1].error == record.error
    assert pending([item]) == [item]
    assert processes_of(run_dir) == []
    assert slurm.calls("scontrol")[-1] == "requeue 17"


@pytest.mark.notebook
@pytest.mark.multiprocess
def test_a_limit_too_short_for_an_epoch_is_a_failure_and_not_tried_for_ever(
    slurm: StandIns,
) -> None:
    run_dir = planned(**{**ENDLESS, "checkpoint_every": 1}, strategy="ddp")
    process = begin(run_dir)
    try:
        wait_for(lambda: is_training(run_dir), "the first step")
        process.send_signal(signal.SIGUSR1)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1, output
    item = entry(read_record(run_dir).spec, run_dir)
    assert (item.state, item.category) == ("failed", "time_limit")
    assert "give it more with --time" in item.reason
    assert pending([item]) == []
    assert slurm.calls("scontrol") == ["show hostnames n1"]


@pytest.mark.notebook
@pytest.mark.multiprocess
def test_a_notice_before_the_run_has_begun_leaves_it_as_it_was(slurm: StandIns) -> None:
    run_dir = planned(**{**ENDLESS, "checkpoint_every": 1}, strategy="ddp")
    before = RunFiles(run_dir).record.read_bytes()
    process = begin(run_dir)
    try:
        wait_for(lambda: job_process(process.pid), "the job's program")
        process.send_signal(signal.SIGUSR1)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode > 128, output
    assert slurm.calls("scontrol")[-1] == "requeue 17"
    assert RunFiles(run_dir).record.read_bytes() == before
    assert processes_of(run_dir) == []


def job_process(script: int) -> bool:
    """Say whether a script has started its program, which takes a second to import the rest."""
    children = psutil.Process(script).children()
    return any("ddl_core.launch.slurm.job" in child.cmdline() for child in children)


@pytest.mark.notebook
@pytest.mark.multiprocess
def test_a_run_does_not_outlive_its_killed_script(slurm: StandIns) -> None:
    run_dir = planned(**ENDLESS, strategy="ddp")
    process = begin(run_dir)
    try:
        wait_for(lambda: is_training(run_dir), "the first step", seconds=200)
    finally:
        process.kill()
    process.communicate(timeout=120)
    wait_for(lambda: not is_locked(run_dir), "the run to end")
    item = entry(read_record(run_dir).spec, run_dir)
    assert item.state == "interrupted"
    assert pending([item]) == [item]  # it was stopped: nothing of its own went wrong
    assert processes_of(run_dir) == []


def test_a_job_needs_the_folder_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert job.main([]) == 2
    assert "usage" in capsys.readouterr().err
