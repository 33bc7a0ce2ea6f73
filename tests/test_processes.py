import os
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from ddl_core.config import RunSpec
from ddl_tools import processes
from ddl_tools.launch.commands import environment
from tests.commands import output
from tests.launch.fixtures import Start
from tests.launch.running import wait_for

FAMILY = ["/bin/sh", "-c", "setsid sleep 300 & sleep 300 & trap '' TERM; sleep 300; sleep 300"]


@pytest.fixture
def token() -> Iterator[str]:
    """Give a token that no other test run on this machine has; nothing of it stays."""
    name = uuid.uuid4().hex
    yield name
    processes.end_all(name)


def test_everything_that_a_command_started_is_ended_and_nothing_else(tmp_path, token) -> None:
    with ExitStack() as stack:

        def begin(command: list[str], token: str) -> subprocess.Popen[bytes]:
            log = tmp_path / "logs" / token
            child = processes.start(command, token=token, log=log, environment=os.environ)
            stack.enter_context(child)
            stack.callback(child.kill)
            return child

        other = begin(["/bin/sleep", "300"], f"{token}-other")
        begin(FAMILY, token)
        wait_for(lambda: len(processes.carrying(token)) == 4, "the family", seconds=30)
        assert processes.end_all(token) == []
        assert processes.carrying(token) == []
        assert other.poll() is None


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


def test_a_command_dies_with_its_parent(start: Start, tmp_path: Path, token: str) -> None:
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from ddl_tools.processes import start\n"
        "child = start(['/bin/sleep', '300'], token=sys.argv[2], log=Path(sys.argv[1]),"
        " environment=os.environ)\n"
        "print(child.pid, flush=True); time.sleep(300)\n"
    )
    parent = start("-c", code, str(tmp_path / "log"), token)
    child = psutil.Process(int(parent.stdout.readline()))
    wait_for(lambda: child.name() == "sleep", "the command", seconds=30)
    parent.kill()
    wait_for(lambda: not processes.carrying(token), "the child to go", seconds=30)


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


def test_what_starts_ranks_is_none_whatever_the_shell_has(token, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    log, own = tmp_path / "log", environment(RunSpec())
    with processes.start(["/bin/sleep", "60"], token=token, log=log, environment=own):
        wait_for(lambda: processes.carrying(token), "the command")
        assert processes.of_ranks(token) == []
        processes.end_all(token)


def test_only_victims_of_our_own_group_are_counted(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    assert processes.oom_kills(proc, groups) == 0
    (proc / "vmstat").write_text("nr_free_pages 5\noom_kill 7\n")
    assert processes.oom_kills(proc, groups) == 7  # no groups: all that is known
    (proc / "self" / "cgroup").write_text("1:name=systemd:/x\n0::/job_17/step_0\n")
    own = groups / "job_17" / "step_0"
    own.mkdir(parents=True)
    (own / "memory.events").write_text("oom 3\noom_kill 2\noom_group_kill 0\n")
    assert processes.oom_kills(proc, groups) == 2


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
    assert output("bash", "-c", command).strip() == "(900, 900)"
