import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from ddl_core.launchers import processes
from tests.launchers.running import wait_for

FAMILY = ["/bin/sh", "-c", "setsid sleep 300 & sleep 300 & trap '' TERM; sleep 300; sleep 300"]


def test_everything_that_a_command_started_is_ended(tmp_path: Path) -> None:
    child = processes.start(FAMILY, token="t1", log=tmp_path / "log", environment=os.environ)
    wait_for(lambda: len(processes.carrying("t1")) == 4, "the family", seconds=10)
    assert processes.end_all("t1") == []
    child.wait()
    assert processes.carrying("t1") == []


def test_another_run_is_left_alone(tmp_path: Path) -> None:
    mine = processes.start(FAMILY, token="t2", log=tmp_path / "a", environment=os.environ)
    other = processes.start(FAMILY, token="t3", log=tmp_path / "b", environment=os.environ)
    wait_for(lambda: len(processes.carrying("t3")) == 4, "the other family", seconds=10)
    processes.end_all("t2")
    try:
        assert len(processes.carrying("t3")) == 4
    finally:
        processes.end_all("t3")
        mine.wait()
        other.wait()


def test_a_command_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from ddl_core.launchers.processes import start\n"
        "child = start(['/bin/sleep', '300'], token='t4', log=Path(sys.argv[1]),"
        " environment=os.environ)\n"
        "print(child.pid, flush=True); time.sleep(300)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    wait_for(lambda: psutil.Process(child).name() == "sleep", "the command", seconds=10)
    parent.kill()
    parent.communicate()
    try:
        wait_for(lambda: not processes.carrying("t4"), "the child to go", seconds=10)
    finally:
        processes.end_all("t4")


def test_output_of_a_command_lands_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "new" / "log"
    command = ["/bin/sh", "-c", "echo out; echo err >&2"]
    processes.start(command, token="t5", log=log, environment=os.environ).wait()
    assert log.read_text() == "out\nerr\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_becomes_an_interrupt(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match=number.name), processes.stoppable():
        signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_a_clean_up_is_not_interrupted() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with processes.undisturbed():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_handlers_are_left_alone_outside_the_main_thread() -> None:
    seen: list[object] = []

    def work() -> None:
        with processes.stoppable():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
