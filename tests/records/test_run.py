"""Result records: atomic, strict, append-only."""

import os
import subprocess

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import RecordError
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import (
    EpochRecord,
    Failure,
    RunRecord,
    append_epoch,
    read_epochs,
    read_record,
    write_record,
)
from ddl_tools.records.storage import write_atomically


def epoch_row(epoch: int, phase: str = "train", attempt: int = 0, **changes) -> EpochRecord:
    values = {
        "attempt": attempt,
        "epoch": epoch,
        "phase": phase,
        "cold": epoch == 0,
        "steps": 2,
        "samples": 32,
        "corrupt_images": 0,
        "wall_s": 1.0,
        "cpu_s": 1.0,
        "data_s": 0.1,
        "rank_wall_s_min": 0.9,
        "rank_wall_s_max": 1.0,
        "step_s_median": 0.5,
        "step_s_p95": 0.5,
        "throughput_samples_per_s": 32.0,
        "loss": 1.5,
        "top1": None,
        "top5": None,
        "lr": 0.1,
        "max_memory_bytes": None,
    }
    return EpochRecord(**{**values, **changes})


def test_a_record_comes_back_as_it_was_written(tmp_path):
    record = RunRecord.plan("laptop", RunSpec(epochs=3), "data")
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    assert list(tmp_path.iterdir()) == [RunFiles(tmp_path).record]  # no temporary file is left


def test_rows_come_back_in_order_and_the_newest_attempt_counts(tmp_path):
    for row in (
        epoch_row(0),
        epoch_row(0, "eval"),
        epoch_row(1, loss=1.0),
        epoch_row(1, attempt=1, loss=2.0),
        epoch_row(2, attempt=1),
    ):
        append_epoch(tmp_path, row)
    rows = read_epochs(tmp_path)
    assert [(r.epoch, r.phase, r.attempt) for r in rows] == [
        (0, "train", 0),
        (0, "eval", 0),
        (1, "train", 1),
        (2, "train", 1),
    ]
    assert rows[2].loss == 2.0


def test_a_line_whose_writer_was_killed_is_no_row_and_is_cut_by_the_next_writer(tmp_path):
    append_epoch(tmp_path, epoch_row(0))
    path = RunFiles(tmp_path).epochs
    with path.open("a") as file:
        file.write('{"attempt": 0, "epo')
    assert len(read_epochs(tmp_path)) == 1
    append_epoch(tmp_path, epoch_row(1))
    assert [row.epoch for row in read_epochs(tmp_path)] == [0, 1]
    assert path.read_text().count("\n") == 2


def test_a_diverged_loss_survives_the_file(tmp_path):
    append_epoch(tmp_path, epoch_row(0, loss=float("nan")))
    loss = read_epochs(tmp_path)[0].loss
    assert loss is not None
    assert loss != loss


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(RecordError, match="--results"):
        write_atomically(blocked / "run.json", "{}")


@pytest.fixture
def full_disk(tmp_path):
    """A file system of 64 kB with no room left."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def fill(folder):
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 512):
                pass
        except OSError:
            return


def append_until_full(folder):
    for epoch in range(1, 200):
        append_epoch(folder, epoch_row(epoch))


def test_a_full_disk_costs_no_finished_record(full_disk):
    record = RunRecord.plan("s", RunSpec())
    write_record(full_disk, record)
    append_epoch(full_disk, epoch_row(0))
    fill(full_disk)
    with pytest.raises(RecordError, match="No space left"):
        write_record(full_disk, record.model_copy(update={"status": "completed"}))
    with pytest.raises(RecordError, match="No space left"):
        append_until_full(full_disk)
    assert read_record(full_disk) == record
    rows = read_epochs(full_disk)
    assert rows[0].epoch == 0
    assert RunFiles(full_disk).epochs.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("message", ["no such network", "TypeError: no such network"])
def test_a_failure_names_its_kind_once(message):
    assert str(Failure.of("TypeError", message)) == "TypeError: no such network"


def test_a_failure_may_name_a_file_whose_name_is_not_utf8(tmp_path):
    name = os.fsdecode(b"na\xefve.jpg")
    failure = Failure.of("DataError", f"{name} is gone")
    record = RunRecord.plan("s", RunSpec()).model_copy(update={"error": failure})
    write_record(tmp_path, record)
    assert read_record(tmp_path).error.message == r"na\udcefve.jpg is gone"
