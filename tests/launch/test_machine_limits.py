"""Runs on a machine that gives them less than it has: cores, processes."""

import subprocess
import sys

import pytest

from ddl_tools.launch.study import doubts
from ddl_tools.processes import import_path, inherited
from ddl_tools.records.run import read_record
from tests.launch.running import (
    control_group,
    error_of,
    joining,
    planned,
    run_within,
    two_ranks,
    unshared,
)

pytestmark = [pytest.mark.multiprocess]
QUOTA = "cpu", "cpu.max", "cpu.cfs_quota_us"  # of 100 ms in version 1


@two_ranks
@pytest.mark.parametrize("most", [4, 6, 7, 9, 12])
def test_a_limit_of_processes_is_the_cause_named(most: int) -> None:
    """Wherever it strikes: leader, ranks, or their threads."""
    run_dir = planned(gpus_per_node=2)
    with control_group("pids", "pids.max", "pids.max", most) as group:
        run_within(run_dir, *joining(group))
    assert error_of(run_dir).category == "processes"


@two_ranks
@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "GOMP_CPU_AFFINITY"])
def test_ranks_are_not_bound_to_one_core(name: str) -> None:
    """A variable for the threads of one process would bind each rank to the same core."""
    run_dir = planned(gpus_per_node=2)
    value = {"OMP_PROC_BIND": "close", "GOMP_CPU_AFFINITY": "0"}[name]
    run_within(run_dir, "env", f"{name}={value}")
    record = read_record(run_dir)
    assert record.status == "completed"
    assert record.system
    assert record.system["affinity"]["cores_of_node"] >= 2
    assert name not in record.system["environment"]


@two_ranks
def test_a_quota_of_less_than_a_core_a_rank_is_refused() -> None:
    run_dir = planned(gpus_per_node=2)
    with control_group(*QUOTA, 50_000) as group:
        run_within(run_dir, *joining(group))
    error = error_of(run_dir)
    assert (error.kind, error.category) == ("SpecError", "settings")
    assert "0.5 cores" in error.message


def test_a_run_that_a_quota_has_slowed_says_so() -> None:
    run_dir = planned(train_images=2560)
    with control_group(*QUOTA, 50_000) as group:
        run_within(run_dir, *joining(group))
    record = read_record(run_dir)
    assert record.status == "completed"
    (line,) = doubts([record])
    assert line.startswith("slowed down: a quota of CPU time stopped 1 of 1 run,")


def test_doctor_finds_a_name_that_nothing_resolves_which_horovod_needs() -> None:
    pytest.importorskip("horovod")
    asked = "from ddl_tools.doctor.machine import ask; found = ask('horovod'); print(found)"
    done = subprocess.run(
        [*unshared("uts", "hostname renamed-laptop"), sys.executable, "-c", asked],
        env={**inherited(), "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "renamed-laptop" in done.stdout, done.stderr
    assert "/etc/hosts" in done.stdout
