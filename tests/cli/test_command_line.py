"""The command line as a user meets it: a process of its own, real ranks, real signals."""

import re
import signal
from pathlib import Path

import pytest

from ddl_tools.launch.study import pending
from ddl_tools.records.ledger import ledger
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.run import read_record
from ddl_tools.study import Study
from tests.launch.fixtures import Start
from tests.launch.running import ENDLESS, TINY, is_training, processes_of, study_file, wait_for

pytestmark = [pytest.mark.notebook, pytest.mark.multiprocess]


def test_a_run_from_the_command_line(start: Start) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    options.append("--epochs=2")
    said, errors = (caller := start("-m", "ddl_tools.cli", "run", *options)).communicate(
        timeout=120
    )
    assert caller.returncode == 0, errors
    assert re.search(r"^completed: \d+\.\d images/s in 1 measured epoch$", said, re.MULTILINE)
    (run_dir,) = results().study("adhoc").iterdir()
    assert read_record(run_dir).status == "completed"
    assert "completed, attempts: 1" in RunFiles(run_dir).notebook.read_text()
    before = RunFiles(run_dir).record.read_bytes()
    caller = start("-m", "ddl_tools.cli", "run", *options)
    _, errors = caller.communicate(timeout=120)
    assert caller.returncode == 1
    assert "is complete and will not be run again" in errors
    assert RunFiles(run_dir).record.read_bytes() == before


def test_a_study_survives_a_failed_run_and_redoes_nothing(tmp_path: Path, start: Start) -> None:
    several = {"min_steps_per_epoch": 1, "eval_every": 0}  # passes: images enough for all ranks
    path = study_file(tmp_path, gpus_per_node=[4096, 1], strategy="ddp", **several)
    command = ("-m", "ddl_tools.cli", "study", "run", str(path))
    _, errors = (caller := start(*command)).communicate(timeout=200)
    assert caller.returncode == 1, errors
    assert "not complete: 1 of 2 runs" in errors
    assert "ddl study resume" in errors
    failed, done = ledger(Study.load(path), results())
    assert (failed.state, done.state) == ("failed", "completed")
    assert "gpus_per_node = 4096" in failed.reason
    files = [RunFiles(item.directory).record for item in (failed, done)]
    before = [file.stat().st_mtime_ns for file in files]
    start(*command).communicate(timeout=100)
    assert [file.stat().st_mtime_ns for file in files] == before


def test_a_stopped_study_leaves_nothing_and_says_how_to_go_on(tmp_path: Path, start: Start) -> None:
    path = study_file(tmp_path, **{**ENDLESS, "classes": [5, 7]})
    caller = start("-m", "ddl_tools.cli", "study", "run", str(path))
    items = ledger(Study.load(path), results())
    wait_for(lambda: any(is_training(item.directory) for item in items), "the first step")
    caller.send_signal(signal.SIGINT)
    _, errors = caller.communicate(timeout=100)
    assert caller.returncode == 130
    assert f"go on with: ddl study run {path}" in errors
    assert "Traceback" not in errors
    assert not any(processes_of(item.directory) for item in items)
    items = ledger(Study.load(path), results())
    assert sorted(item.state for item in items) == ["interrupted", "planned"]
    assert all(item.reason.startswith("Interrupted") for item in items if item.reason)
    assert len(pending(items)) == 2
