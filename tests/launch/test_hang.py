import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ddl_tools import processes
from ddl_tools.launch import diagnose
from tests.launch.running import wait_for

RANK = """
import faulthandler, pathlib, signal, sys, time
faulthandler.register(signal.SIGUSR1, all_threads=False)
pathlib.Path(sys.argv[1]).touch()
def lost():
    time.sleep(300)
lost()
"""


Start = Callable[[int], str]


@pytest.fixture
def start_ranks(tmp_path: Path) -> Iterator[Start]:
    """Start ranks that are lost; return their token."""
    token = uuid.uuid4().hex
    children = []

    def start(count: int) -> str:
        for rank in range(count):
            ready = tmp_path / f"ready_{rank}"
            child = processes.start(
                [sys.executable, "-c", RANK, str(ready)],
                token=token,
                log=tmp_path / "launcher" / "attempt_0" / str(rank) / "stderr.log",
                environment={**os.environ, "RANK": str(rank)},
            )
            children.append(child)
            wait_for(ready.exists, f"rank {rank}")
        return token

    yield start
    processes.end_all(token)
    for child in children:
        child.wait()


def test_an_answer_that_comes_at_once_is_not_missed(monkeypatch, tmp_path, start_ranks):
    ask = psutil.Process.send_signal

    def ask_slowly(process: psutil.Process, number: int) -> None:
        ask(process, number)
        time.sleep(0.5)

    monkeypatch.setattr(psutil.Process, "send_signal", ask_slowly)
    failure = diagnose.ask_ranks(tmp_path, start_ranks(2), "no progress")
    assert failure.rank is None  # both are lost
    assert failure.message.count("lost (<string>:6)") == 2


def test_a_rank_that_is_stopped_does_not_answer(monkeypatch, tmp_path, start_ranks):
    monkeypatch.setattr(diagnose, "ANSWER_S", 1.0)
    token = start_ranks(1)
    (process,) = processes.carrying(token)
    process.send_signal(signal.SIGSTOP)
    assert "rank 0: does not answer" in diagnose.ask_ranks(tmp_path, token, "").message
