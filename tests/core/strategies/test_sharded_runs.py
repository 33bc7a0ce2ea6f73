"""Whole runs under DeepSpeed and FSDP: life after SIGKILL, faults that end with their reason."""

import math
import signal
from typing import Any

import psutil
import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.launch import ranks
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.launch.study import plan_run
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.run import read_epochs, read_record
from tests.core.strategies.faulty_worker import PLANTED
from tests.launch.fixtures import Start
from tests.launch.running import (
    CALLER,
    ENDLESS,
    TINY,
    error_of,
    is_training,
    planned,
    processes_of,
    rank_process,
    two_ranks,
    wait_for,
)

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, two_ranks]

CALL = CALLER.replace("argv[1]", "argv[1], stall_timeout=15")
TWO = {"strategy": "deepspeed", "gpus_per_node": 2}
each_sharding = pytest.mark.parametrize(
    "sharding",
    [
        {"deepspeed_zero_stage": 3},
        pytest.param({"deepspeed_zero_stage": 2}, marks=pytest.mark.extended),
        pytest.param({"strategy": "fsdp"}, marks=pytest.mark.extended),
    ],
    ids=str,
)


@each_sharding
def test_a_killed_run_continues_to_the_same_weights(start: Start, sharding: dict[str, Any]) -> None:
    spec = RunSpec(**{**TINY, **TWO, "epochs": 2, "checkpoint_every": 1, **sharding})
    want = run_ranks(plan_run(spec, "undisturbed", results()))
    run_dir = plan_run(spec, "killed", results())
    caller = start("-c", CALL, str(run_dir))
    checkpoint = RunFiles(run_dir).checkpoint
    wait_for(lambda: checkpoint.exists() or caller.poll() is not None, "the first checkpoint")
    assert checkpoint.exists(), caller.communicate()[1]
    killed = processes_of(run_dir)
    for process in killed:
        process.kill()
    caller.kill()
    psutil.wait_procs(killed, timeout=10)
    assert read_record(run_dir).status == "running"
    record = run_ranks(run_dir)
    assert len(record.attempts) == 2
    assert record.weights_sha256 == want.weights_sha256


@pytest.mark.parametrize(
    ("strategy", "number", "words", "kind"),
    [
        ("fsdp", signal.SIGKILL, "rank 1 was killed by SIGKILL", "Killed"),
        pytest.param(
            *("deepspeed", signal.SIGSTOP, "no progress for 15 s", "Timeout"),
            marks=pytest.mark.extended,
        ),
    ],
)
def test_a_rank_that_ends_or_hangs_fails_the_run(
    start: Start, strategy, number, words, kind
) -> None:
    run_dir = planned(**{**ENDLESS, **TWO, "strategy": strategy})
    caller = start("-c", CALL, str(run_dir))
    wait_for(lambda: is_training(run_dir), "the first step")
    rank_process(run_dir, 1).send_signal(number)
    _, errors = caller.communicate(timeout=120)
    assert words in errors
    assert error_of(run_dir).kind == kind
    assert processes_of(run_dir) == []


def test_a_rank_that_raises_leaves_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "WORKER", "tests.core.strategies.faulty_worker")
    monkeypatch.setenv("DDL_TEST_FAULT", "raise")
    run_dir = planned(**TWO, train_images=256)  # 16 steps
    with pytest.raises(LaunchError, match=PLANTED):
        run_ranks(run_dir)
    error = error_of(run_dir)
    assert (error.kind, error.rank) == ("ValueError", 1)
    assert processes_of(run_dir) == []


@each_sharding
def test_a_training_that_diverges_is_a_result(sharding: dict[str, Any]) -> None:
    run_dir = planned(**{**TWO, "base_lr": 1e30, "warmup_epochs": 0, "epochs": 2, **sharding})
    assert run_ranks(run_dir).status == "completed"
    losses = [row.loss for row in read_epochs(run_dir) if row.phase == "train"]
    assert losses[-1] is not None
    assert math.isnan(losses[-1])
