"""Ranks forked from a process that has imported torch."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from ddl_core.errors import LaunchError
from ddl_tools import processes
from ddl_tools.launch import local_ranks, ranks
from ddl_tools.launch.commands import Command
from ddl_tools.launch.local_ranks import LocalRanks
from ddl_tools.processes import PREFIX, import_path
from tests.launch.fixtures import Start
from tests.launch.running import wait_for

pytestmark = [pytest.mark.multiprocess]

Ask = Callable[..., LocalRanks]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Start two ranks that tell where they are."""
    with ExitStack() as stack:

        def start(*arguments: str, **variables: str) -> LocalRanks:
            words = (sys.executable, "-m", "tests.launch.place_worker", str(tmp_path), *arguments)
            environment = {**processes.inherited(), "PYTHONPATH": import_path(), **variables}
            ranks = local_ranks.local_ranks(Command(words, 2), tmp_path / "logs", environment)
            launcher = stack.enter_context(ranks)
            stack.callback(processes.end, launcher)
            return launcher

        yield start


def test_each_rank_has_its_place_and_the_variables_of_its_run(ask: Ask, tmp_path: Path) -> None:
    assert ask(DDL_COLOUR="red").wait(60) == 0
    for rank in ("0", "1"):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {
            "WORLD_SIZE": "2",
            "LOCAL_RANK": rank,
            "DDL_COLOUR": "red",
            "main": "tests.launch.place_worker",
            "folder": str(Path.cwd()),
        }


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_leader_takes_its_ranks_along(ask: Ask, tmp_path: Path, number: signal.Signals) -> None:
    ranks = ask("0")
    leader = psutil.Process(ranks.pid)
    wait_for((tmp_path / "0.json").exists, "rank 0 to begin; it stays for a minute")
    family = leader.children(recursive=True)
    assert family  # rank 1 may have ended
    leader.send_signal(number)
    assert ranks.wait(10) == -9
    assert psutil.wait_procs(family, timeout=20)[1] == []
    logs = (tmp_path / "logs").rglob("*.log")
    assert not any("Traceback" in log.read_text() for log in logs)


def test_one_server_serves_many_runs_and_has_no_threads(ask: Ask) -> None:
    leaders = []
    for _ in range(2):
        ranks = ask("0")
        leaders.append(psutil.Process(ranks.pid).parent())
        os.kill(ranks.pid, 9)
        assert ranks.wait(10) == -9
    assert leaders[0] == leaders[1]
    assert leaders[0].num_threads() == 1  # else a fork might inherit a lock that nobody opens


# Leaves a process in a session of its own, which is no child of the rank.
LEAVE = "(setsid sleep 300 & echo $! >left); "


@pytest.mark.parametrize(
    ("then", "status"), [("exit 0", 0), ("exit 3", 1), ("kill -9 $PPID; sleep 300", -9)]
)
def test_what_a_rank_has_left_ends_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    command = Command(("/bin/sh", "-c", LEAVE + then), 1)
    with local_ranks.local_ranks(command, tmp_path / "logs", processes.inherited()) as launcher:
        assert launcher.wait(60) == status
        assert not psutil.pid_exists(int(Path("left").read_text()))


LOOKS_FOR_GPUS = """
import sys, torch
from importlib import import_module
from ddl_tools.launch.local_ranks import PRELOADED
for name in ("is_available", "device_count", "init"):
    setattr(torch.cuda, name, lambda: sys.exit("looked for a GPU"))
for name in PRELOADED:
    import_module(name)
"""


def test_loading_looks_for_no_gpu_which_would_spoil_cuda_in_a_fork(start: Start) -> None:
    process = start("-c", LOOKS_FOR_GPUS)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


def test_a_server_that_is_gone_is_replaced(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(local_ranks.SERVER, f"{tmp_path}/nobody")
    assert ask().wait(120) == 0


def test_a_server_that_cannot_start_is_an_error_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.delenv(local_ranks.SERVER, raising=False)
    monkeypatch.setattr(processes, "start", fail)
    with pytest.raises(LaunchError, match="forked from: no space left"), local_ranks.shared():
        pytest.fail("there is no server")


def test_ranks_have_a_temporary_directory_that_goes_with_them(tmp_path: Path) -> None:
    code = "import tempfile; print(tempfile.mkdtemp())"
    command = Command((sys.executable, "-c", code), 1)
    with ranks.start(command, tmp_path, processes.inherited()) as launcher:
        launcher.wait(60)
    (output,) = tmp_path.rglob("stdout.log")
    left = Path(output.read_text().strip())
    assert left.parent.name.startswith(PREFIX)
    assert not left.parent.exists()


def test_a_server_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(local_ranks.SERVER, raising=False)
    before = psutil.Process().children()

    def servers() -> list[psutil.Process]:
        new = (one for one in psutil.Process().children() if one not in before)
        return [one for one in new if local_ranks.PROGRAM in one.cmdline()]

    with local_ranks.shared():
        address = os.environ[local_ranks.SERVER]
        (server,) = wait_for(servers, "its program, which starts later on a busy machine", 10)
    assert not server.is_running()
    assert not Path(address).parent.exists()
