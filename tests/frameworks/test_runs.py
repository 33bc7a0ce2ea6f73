"""Runs of other frameworks through the launcher: their records, and what faults leave behind."""

from pathlib import Path
from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.launch import ranks
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.launch.study import plan_run
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.run import EpochRecord, Failure, RunRecord, read_epochs
from tests.frameworks.equality import interpreter
from tests.frameworks.test_training import CARRIES, OWN
from tests.launch.running import TINY, error_of, processes_of
from tests.pictures import CLASSES, write_pictures

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.extended]

RUN: dict[str, Any] = {
    **TINY,
    "loader": "native",
    "model": "resnet8",
    "classes": CLASSES,
    "train_images": 64,
    "eval_images": 20,  # the last batch of each rank is smaller
    "epochs": 3,
    "base_lr": 0.001,
    "checkpoint_every": 1,
}
# A few updates of a network with ReLU, in which a rounding may turn a unit on or off.
CLOSE = 2e-3
STALL_S = 20.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"), 64, 20)


@pytest.fixture(scope="module")
def by_torch(data: Path) -> tuple[RunRecord, list[EpochRecord]]:
    """Return a run of torch in one process, with two virtual workers."""
    run_dir = planned(data, accumulation=2)
    return run_ranks(run_dir), read_epochs(run_dir)


def planned(data: Path, **fields: Any) -> Path:
    return plan_run(RunSpec(**{**RUN, **fields}), "libraries", results(), data_dir=data)


def arm(data: Path, library: str, strategy: str, **fields: Any) -> Path:
    """Plan a run over two ranks; skip the test where the framework is not there."""
    interpreter(library, strategy)
    return planned(data, framework=library, strategy=strategy, gpus_per_node=2, **fields)


def losses(rows: list[EpochRecord]) -> list[float]:
    return [row.loss for row in rows if row.loss is not None]


def facts(rows: list[EpochRecord]) -> list[tuple[Any, ...]]:
    """Return what depends neither on the framework nor on the number of processes."""
    return [
        (row.phase, row.samples, row.lr, row.ids_sha256, row.phase == "eval" or row.steps)
        for row in rows
    ]


@pytest.mark.parametrize(("library", "strategy"), CARRIES)
def test_a_run_leaves_what_torch_leaves(data, by_torch, library, strategy) -> None:
    whole, theirs = by_torch
    run_dir = arm(data, library, strategy)
    record = run_ranks(run_dir)
    assert record.status == "completed"
    assert record.initial_sha256 == whole.initial_sha256
    assert record.data == whole.data
    rows = read_epochs(run_dir)
    assert facts(rows) == facts(theirs)
    assert losses(rows) == pytest.approx(losses(theirs), rel=CLOSE)
    assert not RunFiles(run_dir).initial.exists()
    assert processes_of(run_dir) == []


@pytest.mark.parametrize(("library", "strategy"), OWN)
def test_a_killed_rank_is_named_and_the_run_goes_on_where_it_was(
    data, by_torch, library, strategy, monkeypatch
) -> None:
    run_dir = arm(data, library, strategy)
    error = failed(run_dir, "kill 1", monkeypatch)
    assert (error.kind, error.rank, error.category) == ("Killed", 1, "killed")
    record = run_ranks(run_dir)
    assert [one.status for one in record.attempts] == ["failed", "completed"]
    assert losses(read_epochs(run_dir)) == pytest.approx(losses(by_torch[1]), rel=CLOSE)


@pytest.mark.parametrize(("library", "strategy"), OWN)
def test_a_hanging_rank_is_named(data, library, strategy, monkeypatch) -> None:
    error = failed(arm(data, library, strategy), "hang 1", monkeypatch, STALL_S)
    assert (error.kind, error.rank, error.category) == ("Timeout", 1, "stalled")


def failed(
    run_dir: Path, fault: str, monkeypatch: pytest.MonkeyPatch, stall_timeout: float = 300
) -> Failure:
    """Run with a planted fault; return what the record says of it."""
    with monkeypatch.context() as patch:
        patch.setattr(ranks, "WORKER", "tests.frameworks.faulty_worker")
        patch.setenv("DDL_TEST_FAULT", fault)
        with pytest.raises(LaunchError):
            run_ranks(run_dir, stall_timeout=stall_timeout)
    assert processes_of(run_dir) == []
    return error_of(run_dir)
