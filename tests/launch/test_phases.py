"""Told to stop, in whatever phase, a run ends cleanly and goes on to the same weights."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.launch.study import plan_run
from ddl_tools.records.ledger import entry
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.progress import read_progress
from ddl_tools.records.run import read_epochs, read_record
from tests.launch.fixtures import Start
from tests.launch.running import CALLER, TINY, processes_of

POLL_S = 0.01
# Each phase takes tenths of a second, so that none is missed.
FIELDS = {
    "model": "resnet18",
    "train_images": 64,
    "eval_images": 200,
    "epochs": 3,
    "checkpoint_every": 1,
}


def in_phase(name: str) -> Callable[[Path], bool]:
    def look(run_dir: Path) -> bool:
        progress = read_progress(run_dir)
        return progress is not None and progress["phase"] == name

    return look


def writes_checkpoint(run_dir: Path) -> bool:
    return (run_dir / f".{RunFiles(run_dir).checkpoint.name}.tmp").exists()


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "starting": lambda run_dir: bool(processes_of(run_dir)),
    "evaluation": in_phase("eval"),
    "checkpoint": writes_checkpoint,
}


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(900)
def test_a_run_that_is_stopped_in_every_phase_ends_with_the_weights_of_one_that_was_not(
    start: Start,
) -> None:
    spec = RunSpec(**{**TINY, **FIELDS})
    run_dir = plan_run(spec, "stopped", results())
    for number, (name, moment) in enumerate(MOMENTS.items(), start=1):
        caller = start("-c", CALLER, str(run_dir))
        while not moment(run_dir):
            assert caller.poll() is None, f"ended before {name}: {caller.communicate()[1]}"
            time.sleep(POLL_S)
        caller.send_signal(signal.SIGTERM)
        _, errors = caller.communicate(timeout=60)
        assert "KeyboardInterrupt: SIGTERM" in errors
        assert processes_of(run_dir) == []
        found = entry(spec, run_dir)
        assert (found.state, found.category) == ("interrupted", "cancelled")
        assert len(read_record(run_dir).attempts) == number
    stopped = run_ranks(run_dir)
    undisturbed = run_ranks(plan_run(spec, "undisturbed", results()))
    assert stopped.weights_sha256 == undisturbed.weights_sha256
    rows = [read_epochs(results().study(name) / spec.run_id) for name in ("stopped", "undisturbed")]
    results_of = [[(row.epoch, row.phase, row.loss, row.top1) for row in one] for one in rows]
    assert results_of[0] == results_of[1]
