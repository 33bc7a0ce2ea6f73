"""One measurement at a time: who waits says for whom, and no lock outlives its holder."""

import errno
import fcntl
import os
import signal
import stat
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from ddl_core.errors import LaunchError
from ddl_tools import limits
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


def test_the_file_is_for_all_users_and_stays_as_it_is(lock: Path) -> None:
    before = os.umask(0o077)
    try:
        with measuring.alone("study 'one'"):
            assert stat.S_IMODE(lock.stat().st_mode) == 0o666
            assert lock.read_text() == ""
    finally:
        os.umask(before)
    lock.write_text("of another user")
    with measuring.alone("study 'one'"):
        pass
    assert lock.read_text() == "of another user"


def test_who_measures_knows_how_fast_the_machine_is(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured once an hour, as each start would take two seconds more."""
    monkeypatch.setenv("DDL_TMPDIR", str(tmp_path))
    monkeypatch.delenv(limits.SPEED)
    monkeypatch.setattr(limits, "SPEED_S", 0.1)
    assert limits.known_speed() is None
    for _ in range(2):
        with measuring.alone("mine"):
            first = limits.known_speed()
        assert 10 < first < 1e6
        assert limits.known_speed() is None
        monkeypatch.setattr(limits, "speed", lambda: pytest.fail("measured again"))
    (kept,) = tmp_path.glob("*/speed/*")
    os.utime(kept, (0, 0))
    monkeypatch.setattr(limits, "speed", lambda: 7.0)
    with measuring.alone("mine"):
        assert limits.known_speed() == 7


def test_no_file_behind_a_link_is_locked_or_changed(lock: Path, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("ten years of work")
    lock.symlink_to(thesis)
    named = f"no regular file; .*{measuring.LOCK}.*, or remove it"
    with pytest.raises(LaunchError, match=named), measuring.alone("mine"):
        pytest.fail("it is not ours")
    assert thesis.read_text() == "ten years of work"


def test_a_link_that_takes_the_name_meanwhile_changes_no_file(lock: Path, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("ten years of work")
    with measuring.alone("mine"):
        lock.rename(tmp_path / "moved")
        lock.symlink_to(thesis)
    assert thesis.read_text() == "ten years of work"


@pytest.mark.parametrize("held", [False, True])
def test_a_pipe_in_its_place_is_refused_at_once(lock: Path, start: Start, held: bool) -> None:
    os.mkfifo(lock)
    with ExitStack() as stack:
        if held:
            file = stack.enter_context(open(os.open(lock, os.O_RDWR), "rb"))  # noqa: PTH123
            fcntl.flock(file, fcntl.LOCK_EX)
        _, errors = start("-c", HOLDER).communicate(timeout=30)
    assert "no regular file" in errors


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_a_lock_of_another_user_that_cannot_be_opened_says_whose_it_is(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    lock.touch(0o644)
    os.chown(lock, 65_534, 65_534)
    monkeypatch.setattr(measuring.FileLock, "acquire", refuse)  # root may open everything
    named = r"belongs to user nobody: Permission denied; .*LOCK .*, or let user nobody remove it"
    with pytest.raises(LaunchError, match=named), measuring.alone("mine"):
        pytest.fail("it is not ours")


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
    user = psutil.Process().username()
    assert f"'mine' waits: process {holder.pid} of user {user} (started 2" in "".join(said)
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


def test_what_a_holder_starts_measures_under_its_lock(start: Start) -> None:
    code = (
        "from ddl_tools.launch import measuring\nwith measuring.alone('a run of it'): print('in')"
    )
    with measuring.alone("study 'one'"), measuring.alone("its own run"):
        said, errors = start("-c", code).communicate(timeout=60)
        assert said == "in\n", errors
    assert measuring.HELD not in os.environ


def test_a_job_does_not_wait_but_says_who_disturbs_it(
    holder: "subprocess.Popen[str]",
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("DDL_SRUN", "srun")
    with measuring.alone("run 'mine'"):
        said = capsys.readouterr().err
    assert "warning: run 'mine' does not wait" in said
    assert f"process {holder.pid} of user" in said


def test_a_holder_that_the_system_does_not_name_is_another_process(
    holder: "subprocess.Popen[str]",
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As in a container that does not see the processes of others."""
    monkeypatch.setattr(measuring, "LOCKS", Path("/proc/no-such-file"))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("DDL_SRUN", "srun")
    with measuring.alone("run 'mine'"):
        assert "another process measures on this machine" in capsys.readouterr().err
