"""Whatever a test leaves behind is named and taken back; what it puts right again is not."""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import hermetic

ended = threading.Event()
kept: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(hermetic, "GRACE_S", 0.2)
    ended.clear()
    yield
    ended.set()
    for one in kept:
        one.wait()
    kept.clear()


def leave_a_process() -> None:
    kept.append(subprocess.Popen(["sleep", "60"]))


LEFT: dict[str, Callable[[], object]] = {
    "current directory": lambda: os.chdir("/"),
    "handler of SIGTERM": lambda: signal.signal(signal.SIGTERM, lambda *_: None),
    "environment: DDL_LEFT": lambda: os.environ.update(DDL_LEFT="1"),
    "environment: PATH": lambda: os.environ.pop("PATH"),
    "child process": leave_a_process,
    "thread": lambda: threading.Thread(target=ended.wait, daemon=True).start(),
    "temporary file": lambda: tempfile.mkdtemp(),
}


@pytest.mark.parametrize("what", LEFT)
def test_what_is_left_is_named(what: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=what), hermetic.hermetic("this test"):
        LEFT[what]()


def test_what_can_be_is_taken_back() -> None:
    folder, path = Path.cwd(), os.environ["PATH"]
    leave = [LEFT[name] for name in ("current directory", "environment: PATH")]
    with pytest.raises(pytest.fail.Exception), hermetic.hermetic("this test"):
        assert [one() for one in leave]
    assert (Path.cwd(), os.environ["PATH"]) == (folder, path)
    with hermetic.hermetic("the next one"):
        pass
