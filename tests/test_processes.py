import os
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from ddl_tools import processes
from ddl_tools.subreaper import descendants, freeze, thaw
from tests.commands import output
from tests.launch.fixtures import Start
from tests.launch.running import wait_for

# One in a session of its own, one whose parent has ended, and one that takes no notice.
FAMILY = """
setsid sleep 300 &
(setsid sleep 300 & sleep 300 &)
trap '' TERM
sleep 300; sleep 300
"""


def begin(stack: ExitStack, log: Path, *command: str) -> subprocess.Popen[bytes]:
    """Start a command that does not outlive the test."""
    child = processes.start(command, log=log, environment=os.environ)
    stack.enter_context(child)
    stack.callback(child.kill)
    return child


def family_of(child: int) -> list[psutil.Process]:
    """Wait until all of `FAMILY` descend from a process; return them."""
    root = psutil.Process(child)

    def whole() -> list[psutil.Process]:
        found = descendants(root)
        with suppress(psutil.NoSuchProcess):  # its shell has just ended
            names = sorted(one.name() for one in found)
            return found if names == ["sh", *["sleep"] * 4] else []
        return []

    found: list[psutil.Process] = wait_for(whole, "the family", seconds=30)
    return found


def lives(one: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return one.is_running() and one.status() != "zombie"
    return False


def test_everything_that_a_command_started_is_ended_and_nothing_else(tmp_path: Path) -> None:
    with ExitStack() as stack:
        other = begin(stack, tmp_path / "other", "/bin/sleep", "300")
        child = begin(stack, tmp_path / "log", "/bin/sh", "-c", FAMILY)
        family = family_of(child.pid)
        assert processes.end(child) == []
        assert not any(map(lives, family))
        assert other.poll() is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_command_that_is_killed_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with ExitStack() as stack:
        child = begin(stack, tmp_path / "log", "/bin/sh", "-c", FAMILY.replace("trap", ": "))
        family = family_of(child.pid)
        psutil.Process(child.pid).children()[0].send_signal(number)
        assert child.wait(30) == -number
        wait_for(lambda: not any(map(psutil.Process.is_running, family)), "the family to go", 30)


def test_the_exit_status_is_that_of_the_command(tmp_path: Path) -> None:
    with ExitStack() as stack:
        assert begin(stack, tmp_path / "log", "/bin/sh", "-c", "exit 3").wait(30) == 3
        assert begin(stack, tmp_path / "log", "/no/such/program").wait(30) == 1
    assert "cannot start /no/such/program" in (tmp_path / "log").read_text()


def test_processes_stand_still_until_they_go_on(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = (
            begin(stack, tmp_path / name, "/bin/sh", "-c", FAMILY) for name in ("first", "second")
        )
        family, others = family_of(first.pid), family_of(second.pid)
        root = psutil.Process(first.pid)
        stopped = freeze(lambda: descendants(root))
        wait_for(lambda: {one.status() for one in family} == {psutil.STATUS_STOPPED}, "all")
        assert psutil.STATUS_STOPPED not in {one.status() for one in others}
        thaw(stopped)
        wait_for(lambda: {one.status() for one in family} == {psutil.STATUS_SLEEPING}, "all")


def test_memory_of_processes_is_theirs_and_shared_pages_count_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, time; kept = b'x' * 10**8; os.fork(); print(flush=True); time.sleep(300)"
    parent = start("-c", code)
    for _ in range(2):
        parent.stdout.readline()
    own = psutil.Process(parent.pid)
    family = [own, *own.children()]
    assert 1.0e8 < processes.memory_bytes(family) < 1.5e8

    def denied(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", denied)
    assert 2.0e8 < processes.memory_bytes(family) < 3.0e8
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=10)
    assert processes.memory_bytes(family) == 0


def test_a_command_dies_with_its_parent_and_so_does_what_it_left(
    start: Start, tmp_path: Path
) -> None:
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from ddl_tools.processes import start\n"
        "child = start(['/bin/sh', '-c', sys.argv[2]], log=Path(sys.argv[1]),"
        " environment=os.environ)\n"
        "print(child.pid, flush=True); time.sleep(300)\n"
    )
    parent = start("-c", code, str(tmp_path / "log"), FAMILY.replace("trap", ": "))
    family = family_of(int(parent.stdout.readline()))
    parent.kill()
    wait_for(lambda: not any(map(psutil.Process.is_running, family)), "the family to go", 30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_becomes_an_interrupt(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match=number.name), processes.stoppable():
        signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_a_second_stop_signal_does_not_cut_the_clean_up_short() -> None:
    """SLURM sends SIGTERM to the process of a job, and so does the script of the job."""
    steps = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            steps.append("cleaned up")

    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), processes.stoppable():
        work()
    assert steps == ["cleaned up"]


def test_a_clean_up_is_not_interrupted() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with processes.undisturbed():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_what_must_not_be_cut_is_interrupted_at_its_end() -> None:
    before, done = signal.getsignal(signal.SIGINT), []

    def be_interrupted() -> None:
        with processes.uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        be_interrupted()
    assert done
    assert signal.getsignal(signal.SIGINT) == before


ASK = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
RAISE = "from ddl_tools.processes import allow_open_files; allow_open_files(); " + ASK
RANK = (
    "from ddl_tools.rank import recorder; recorder.report = lambda *_: None\n"
    "from ddl_tools.rank import worker; worker.main(['nowhere'])\n" + ASK
)


@pytest.mark.parametrize("limit", [100, 900])
@pytest.mark.parametrize("code", [RAISE, pytest.param(RANK, marks=pytest.mark.slow)])
def test_a_rank_may_open_as_many_files_as_the_system_lets_it(limit, code) -> None:
    program = shlex.join([sys.executable, "-c", code])
    command = f"ulimit -Sn {limit}; ulimit -Hn 900; exec {program}"
    assert output("bash", "-c", command).splitlines()[-1] == "(900, 900)"
