"""Whatever a test leaves behind is named and taken back; what it puts right again is not."""

import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import hermetic

SHARED = hermetic.SHARED_MEMORY / f"psm_left_{os.getpid()}"
ended = threading.Event()
kept: list[int | subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(hermetic, "GRACE_S", 0.2)
    monkeypatch.setattr(hermetic, "_other_tests", lambda: False)
    ended.clear()
    yield
    ended.set()
    for one in kept:
        os.close(one) if isinstance(one, int) else one.wait()
    kept.clear()
    SHARED.unlink(missing_ok=True)


def leave_a_process() -> None:
    kept.append(subprocess.Popen(["sleep", "60"]))


def leave_open_files() -> None:
    kept.extend(os.dup(2) for _ in range(hermetic.MORE_FILES + 2))


LEFT: dict[str, Callable[[], object]] = {
    "current directory": lambda: os.chdir("/"),
    "umask": lambda: os.umask(0o077),
    "handler of SIGTERM": lambda: signal.signal(signal.SIGTERM, lambda *_: None),
    "environment: DDL_LEFT": lambda: os.environ.update(DDL_LEFT="1"),
    "environment: PATH": lambda: os.environ.pop("PATH"),
    "child process": leave_a_process,
    "thread": lambda: threading.Thread(target=ended.wait, daemon=True).start(),
    "open files": leave_open_files,
    "temporary file": lambda: tempfile.mkdtemp(),
    "/dev/shm/psm_left": lambda: SHARED.touch(),
}


def test_other_tests_on_this_machine_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    left = "echo $$; exec -a 'another pytest' sleep 60 >/dev/null"
    shell = ["bash", "-c", f"bash -c {shlex.quote(left)} & wait -n || true"]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.kill()  # then the other one is no descendant of this process
    try:
        assert hermetic._other_tests()
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("what", LEFT)
def test_what_is_left_is_named(what: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=what), hermetic.hermetic("this test"):
        LEFT[what]()


def test_what_can_be_is_taken_back() -> None:
    folder, path = Path.cwd(), os.environ["PATH"]
    leave = [LEFT[name] for name in ("current directory", "environment: PATH", "umask")]
    with pytest.raises(pytest.fail.Exception), hermetic.hermetic("this test"):
        assert [one() for one in leave]
    assert (Path.cwd(), os.environ["PATH"]) == (folder, path)
    with hermetic.hermetic("the next one"):
        pass


def test_what_ends_soon_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hermetic, "GRACE_S", 30.0)
    with hermetic.hermetic("this test"):
        threading.Thread(target=time.sleep, args=(0.2,)).start()


def test_shared_memory_of_a_living_process_is_its_own() -> None:
    with hermetic.hermetic("this test"):
        kept.append(os.open(SHARED, os.O_CREAT))
