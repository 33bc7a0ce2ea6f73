"""Ranks inside a SLURM job: the step's command, and its end before that of its processes.

A stand-in takes the place of srun; `test_job` and `test_real_slurm` complete runs.
"""

import sys
from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.launch import commands
from ddl_tools.launch.commands import Allocation
from tests.launch.fixtures import Start
from tests.launch.running import (
    CALLER,
    ENDLESS,
    error_of,
    is_training,
    planned,
    processes_of,
    two_ranks,
    wait_for,
)
from tests.launch.stand_ins import SRUN, StandIns

TWO_BY_FOUR = RunSpec(strategy="ddp", nodes=2, gpus_per_node=4)


def test_a_job_that_cannot_start_ranks_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Allocation.current() is None
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert Allocation.current() is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_JOB_NUM_NODES", "abc"),
        ("SLURM_JOB_NUM_NODES", "-1"),
        ("SLURM_JOB_NUM_NODES", "9" * 5000),
        ("DDL_SRUN", "srun 'x"),
        ("DDL_SRUN", " "),
        ("DDL_BLOCK", "without a place"),
        ("DDL_PLACE", "first"),
    ],
)
def test_a_wrong_variable_of_a_job_is_one_sentence(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one, text in {"SLURM_JOB_ID": "17", "DDL_SRUN": "srun", name: value}.items():
        monkeypatch.setenv(one, text)
    with pytest.raises(LaunchError, match=name) as refused:
        Allocation.current()
    assert "\n" not in str(refused.value)


def test_the_way_to_start_tasks_is_split_into_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("DDL_SRUN", "srun 'a b' c")
    allocation = Allocation.current()
    assert allocation is not None
    assert (allocation.nodes, allocation.srun) == (1, ("srun", "a b", "c"))


def test_one_task_per_rank(job: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    line = list(commands.command(TWO_BY_FOUR, "worker", Path("/run"), Path("/logs")).step)
    program = str(job.folder / "srun")
    assert line[:4] == [program, "--nodes=2", "--ntasks=8", "--ntasks-per-node=4"]
    assert line[4:10] == ["--mpi=none", "env", "-u", "NOTHING", "sh", "-c"]
    assert line[-5:] == ["/logs/srun/attempt_0", sys.executable, "-m", "worker", "/run"]
    monkeypatch.setenv("PATH", "/nothing")
    with pytest.raises(LaunchError, match="cannot find 'srun' on PATH"):
        commands.command(TWO_BY_FOUR, "worker", Path("/run"), Path("/logs"))


@two_ranks
@pytest.mark.multiprocess
def test_stopping_a_run_ends_the_step_first(job: StandIns, start: Start, tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    noting = SRUN.replace("def stop(*_):", f"def stop(*_):\n    open({str(mark)!r}, 'w').close()")
    job.python("srun", noting)
    run_dir = planned(**ENDLESS, gpus_per_node=2)
    caller = start("-c", CALLER, str(run_dir))
    wait_for(lambda: is_training(run_dir), "the first step")
    caller.terminate()
    caller.communicate(timeout=60)
    assert mark.exists()
    assert error_of(run_dir).kind == "Interrupted"
    assert processes_of(run_dir) == []
