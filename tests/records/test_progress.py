"""What a run tells of where it is: cheap for rank 0, and enough for who watches it."""

import os

import pytest

from ddl_core.config import RunSpec
from ddl_tools.rank.recorder import RunRecorder
from ddl_tools.records import progress
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.progress import Progress, describe, read_progress
from ddl_tools.records.run import RunRecord, write_record


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A writer on a clock that stands still, and what a reader finds."""
    now = iter(range(10, 10_000))
    ticks = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: ticks[0] + 1e-6 * next(now))
    return Progress(RunFiles(tmp_path).progress, 4), lambda: read_progress(tmp_path), ticks


def test_each_stage_of_set_up_is_told(told) -> None:
    writer, seen, _ = told
    assert describe(seen()) == "setting up: joining the other ranks"
    writer.set_up("listing the images")
    assert describe(seen()) == "setting up: listing the images"


def test_the_first_step_of_training_and_of_evaluation_is_told_at_once(told) -> None:
    writer, seen, ticks = told
    for phase in ("train", "eval"):
        writer.begin(phase, 0, 8)
        assert seen()["stage"] == "first step"
        assert describe(seen()) == f"epoch 1/4 {phase}, first step"
        writer.step(1, 9)
        assert (seen()["stage"], seen()["step"]) == (None, 1)
        writer.step(2, 9)
        assert seen()["step"] == 1  # the next one is not worth a file
        ticks[0] += 1
        writer.step(3, 9)
        assert seen()["step"] == 3
    writer.begin("train", 1, 8)
    assert (seen()["stage"], seen()["step"]) == (None, 0)  # nothing is new in a second epoch


def test_a_first_step_that_compiles_is_told_so(tmp_path) -> None:
    writer = Progress(RunFiles(tmp_path).progress, 4, compiles=True)
    for phase in ("train", "eval"):
        writer.begin(phase, 0, 8)
        assert describe(read_progress(tmp_path)) == f"epoch 1/4 {phase}, compiling"
        writer.step(1, 9)
        assert describe(read_progress(tmp_path)).startswith(f"epoch 1/4 {phase}, step 1/9")


@pytest.mark.parametrize(
    ("fields", "stage"),
    [
        ({"compile": True}, "compiling"),
        ({"compile": True, "work": "load"}, "first step"),
        ({}, "first step"),
    ],
)
def test_a_run_knows_whether_its_first_step_compiles(tmp_path, fields, stage) -> None:
    write_record(tmp_path, RunRecord.plan("small", RunSpec(**fields), None))
    recorder = RunRecorder(tmp_path)
    recorder.progress.begin("train", 0, 8)
    assert read_progress(tmp_path)["stage"] == stage


def test_no_rank_waits_for_the_disk(told, monkeypatch) -> None:
    writer, seen, _ = told
    monkeypatch.setattr(os, "fsync", None)
    writer.begin("train", 0, 8)
    writer.step(1, 9)
    assert seen()["step"] == 1
