"""A disk that is full in the middle of a run: the run ends, and its record says why."""

import errno
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from ddl_core.errors import RecordError
from ddl_core.files import cannot_write
from ddl_tools.rank import recorder
from ddl_tools.records import ledger
from ddl_tools.records.ledger import finish_run
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.run import Attempt, Failure, read_record, write_record
from ddl_tools.records.storage import RESERVE_BYTES, keep_room, now
from tests.launch.fixtures import Mount, Start
from tests.launch.running import ENDLESS, is_training, planned, processes_of, wait_for

CAUSE = Failure.of("RecordError", "cannot write: No space left on device", 0)


def begun() -> Path:
    """Return a run whose record says that it is at work."""
    directory = planned()
    record = read_record(directory)
    attempts = [Attempt(started_utc=now())]
    write_record(directory, record.model_copy(update={"status": "running", "attempts": attempts}))
    return directory


def fill(folder: Path) -> None:
    """Leave no byte free."""
    with (folder / "ballast").open("ab", buffering=0) as file:
        for size in (65_536, 512, 1):
            with suppress(OSError):  # no space left on device
                while file.write(b"\1" * size):
                    pass


def test_what_a_rank_has_to_say_and_the_record_find_room(
    mount: Mount, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    disk = mount("size=1m")
    monkeypatch.setenv("DDL_RESULTS", str(disk))
    directory = begun()
    keep_room(RunFiles(directory).reserve)
    fill(disk)
    try:
        write_record(directory, read_record(directory))
    except RecordError as error:
        recorder.report(directory, error)
    assert "No space left on device" in RunFiles(directory).error.read_text()
    finish_run(directory, CAUSE)
    record = read_record(directory)
    assert (record.status, record.error) == ("failed", CAUSE)
    assert record.attempts[-1].status == "failed"
    assert not RunFiles(directory).reserve.exists()
    assert "Traceback" not in capfd.readouterr().err


def test_a_record_that_cannot_be_written_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = begun()

    def refuse(folder: Path, record: object) -> None:
        raise cannot_write(folder, OSError(errno.EROFS, os.strerror(errno.EROFS)))

    monkeypatch.setattr(ledger, "write_record", refuse)
    with pytest.raises(RecordError) as caught:
        finish_run(directory, CAUSE)
    for words in ("No space left", "cannot say so and remains 'running'", "Read-only file system"):
        assert words in str(caught.value)


def test_the_room_is_kept_while_a_run_is_at_work(tmp_path: Path) -> None:
    keep_room(tmp_path / ".reserve")
    assert (tmp_path / ".reserve").stat().st_blocks * 512 >= RESERVE_BYTES


@pytest.mark.notebook
@pytest.mark.multiprocess
def test_a_run_on_a_disk_that_fills_up_ends_as_failed_and_says_so(
    mount: Mount, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    disk = mount("size=1100m")  # a run wants 1 GB at its start; nothing of it is used
    monkeypatch.setenv("DDL_RESULTS", str(disk))
    options = [f"--{name.replace('_', '-')}={value}" for name, value in ENDLESS.items()]
    caller = start("-m", "ddl_tools.cli", "run", *options)
    (directory,) = wait_for(lambda: list(results().study("adhoc").glob("*")), "the plan")
    wait_for(lambda: is_training(directory), "the first step")
    used = os.statvfs(disk)
    size = (used.f_blocks - used.f_bfree) * used.f_frsize + 4096
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
    fill(disk)
    said, errors = caller.communicate(timeout=120)
    assert caller.returncode == 1
    assert "No space left on device" in errors
    assert "Traceback" not in said + errors
    record = read_record(directory)
    assert record.error is not None
    assert (record.status, record.error.category) == ("failed", "disk")
    assert processes_of(directory) == []
    logs = "".join(path.read_text() for path in directory.glob("logs/**/*.log"))
    assert "Traceback" not in logs
