"""One measurement at a time: who waits says for whom, and no lock outlives its holder."""

import os
import signal
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from ddl_tools.launch import measuring
from tests.launch.fixtures import Start
from tests.launch.running import wait_for

HOLDER = """
import time
from ddl_tools.launch import measuring
with measuring.alone("study 'other'"):
    print("held", flush=True)
    time.sleep(300)
"""


@pytest.fixture(autouse=True)
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measuring, "POLL_S", 0.02)
    monkeypatch.setenv(measuring.LOCK, str(tmp_path / "lock"))
    return tmp_path / "lock"


@pytest.fixture
def holder(lock: Path, start: Start) -> "subprocess.Popen[str]":
    """A process that measures."""
    process = start("-c", HOLDER)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_file_is_for_all_users_and_says_who_measures(lock: Path) -> None:
    before = os.umask(0o077)
    try:
        with measuring.alone("study 'one'"):
            assert stat.S_IMODE(lock.stat().st_mode) == 0o666
            assert "study 'one'" in lock.read_text()
    finally:
        os.umask(before)
    assert lock.read_text() == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_second_one_waits_until_the_first_has_gone_however_it_goes(
    holder: "subprocess.Popen[str]", capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    done: list[str] = []

    def measure() -> None:
        with measuring.alone("study 'mine'"):
            done.append("study 'mine'")

    thread = threading.Thread(target=measure, daemon=True)
    thread.start()
    said: list[str] = []
    wait_for(lambda: said.append(capsys.readouterr().err) or "".join(said), "a word on who")
    assert "study 'mine' waits: study 'other' (process" in "".join(said)
    assert f"process {holder.pid} of " in "".join(said)
    assert not done
    holder.send_signal(number)
    thread.join(60)
    assert done == ["study 'mine'"]
    assert "".join([*said, capsys.readouterr().err]).count("mine' waits") == 1


def test_who_waits_can_be_interrupted(
    holder: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", press)
    with pytest.raises(KeyboardInterrupt), measuring.alone("mine"):
        pytest.fail("another one measures")
    assert measuring.HELD not in os.environ


def test_what_a_holder_starts_measures_under_its_lock(lock: Path, start: Start) -> None:
    code = (
        "from ddl_tools.launch import measuring\nwith measuring.alone('a run of it'): print('in')"
    )
    with measuring.alone("study 'one'"), measuring.alone("its own run"):
        said, errors = start("-c", code).communicate(timeout=60)
        assert said == "in\n", errors
        assert "study 'one'" in lock.read_text()
    assert measuring.HELD not in os.environ


def test_a_job_does_not_wait_but_says_who_disturbs_it(
    holder, lock: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("DDL_SRUN", "srun")
    with measuring.alone("run 'mine'"):
        assert "warning: run 'mine' does not wait" in capsys.readouterr().err
    assert "study 'other'" in lock.read_text()  # whose lock it is still
