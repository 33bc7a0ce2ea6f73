"""Told to stop, in whatever phase, a run ends cleanly and goes on to the same weights."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ddl_tools.launch.ranks import run_ranks
from ddl_tools.launch.study import plan_run
from ddl_tools.records.ledger import entry
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.progress import read_progress
from ddl_tools.records.run import read_epochs, read_record
from tests.launch.fixtures import Start
from tests.launch.running import CALLER, planned, processes_of

POLL_S = 0.01
# Each phase takes tenths of a second, so that none is missed.
FIELDS = {
    "model": "resnet18",
    "train_images": 64,
    "eval_images": 200,
    "epochs": 3,
    "checkpoint_every": 1,
}


def evaluates(run_dir: Path) -> bool:
    progress = read_progress(run_dir)
    return progress is not None and progress["phase"] == "eval"


def writes_checkpoint(run_dir: Path) -> bool:
    return (run_dir / f".{RunFiles(run_dir).checkpoint.name}.tmp").exists()


def epochs_of(run_dir: Path) -> list[tuple[Any, ...]]:
    return [(row.epoch, row.phase, row.loss, row.top1) for row in read_epochs(run_dir)]


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(900)
def test_a_run_that_is_stopped_in_every_phase_ends_with_the_same_weights(start: Start) -> None:
    run_dir = planned(**FIELDS)
    spec = read_record(run_dir).spec
    for number, moment in enumerate((processes_of, evaluates, writes_checkpoint), start=1):
        caller = start("-c", CALLER, str(run_dir))
        while not moment(run_dir):
            assert caller.poll() is None, f"before {moment.__name__}: {caller.communicate()[1]}"
            time.sleep(POLL_S)
        caller.send_signal(signal.SIGTERM)
        _, errors = caller.communicate(timeout=60)
        assert "KeyboardInterrupt: SIGTERM" in errors
        assert processes_of(run_dir) == []
        found = entry(spec, run_dir)
        assert (found.state, found.category) == ("interrupted", "cancelled")
        assert len(read_record(run_dir).attempts) == number
    stopped = run_ranks(run_dir)
    whole = plan_run(spec, "undisturbed", results())
    undisturbed = run_ranks(whole)
    assert stopped.weights_sha256 == undisturbed.weights_sha256
    assert epochs_of(run_dir) == epochs_of(whole)
