"""Ranks forked from a process that has imported torch."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from ddl_core.errors import LaunchError
from ddl_core.system import PREFIX
from ddl_tools import processes
from ddl_tools.launch import fork_server, forked_ranks, supervise
from ddl_tools.launch.commands import Command
from ddl_tools.launch.fork_server import ForkServer, Ranks
from ddl_tools.launch.forked_ranks import read_early
from ddl_tools.launch.notebook import execute
from ddl_tools.processes import import_path
from tests.launch.running import wait_for

pytestmark = [pytest.mark.multiprocess]

Ask = Callable[..., Ranks]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Start two ranks that tell where they are."""

    def start(*arguments: str, **variables: str) -> Ranks:
        words = [sys.executable, "-m", "tests.launch.place_worker", str(tmp_path), *arguments]
        environment = {**os.environ, "PYTHONPATH": import_path(), **variables}
        request = {"rank": words, "ranks": 2, "logs": str(tmp_path / "logs")}
        request["folder"] = str(tmp_path)
        return Ranks({**request, "environment": environment, "token": uuid.uuid4().hex})

    return start


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_the_address_appears_no_sooner_than_it_can_be_connected_to(tmp_path, monkeypatch) -> None:
    address = tmp_path / "socket"

    class ListeningError(Exception):
        pass

    class Socket(socket.socket):
        def listen(self, *_: int) -> None:
            self.close()
            assert not address.exists()
            raise ListeningError

    monkeypatch.setattr(socket, "socket", Socket)
    monkeypatch.setattr(forked_ranks, "_shown", lambda name: 0)  # no variables to write into
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(ListeningError):
            forked_ranks.main(str(address))
    finally:
        signal.signal(signal.SIGINT, before)


def test_each_rank_is_at_its_place_with_the_variables_of_its_run(ask, tmp_path) -> None:
    assert ask(DDL_COLOUR="red").wait(60) == 0
    first, second = told(tmp_path)
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"]) == ("0", "1")
    assert first["WORLD_SIZE"] == "2"
    assert first["DDL_COLOUR"] == "red"
    assert first["main"] == "tests.launch.place_worker"
    assert first["folder"] == str(tmp_path)


def test_one_server_serves_many_runs_and_has_no_threads(ask) -> None:
    leaders = []
    for number in range(2):
        # As torch's compiler sets it, in a process that imports it after the server began.
        ranks = ask("0", TORCHINDUCTOR_CACHE_DIR=f"/somewhere/{number}")
        assert ranks._own is None
        leaders.append(psutil.Process(ranks.pid).parent())
        os.kill(ranks.pid, 9)
        assert ranks.wait(10) == -9
    assert leaders[0] == leaders[1]
    assert leaders[0].num_threads() == 1  # else a fork might inherit a lock that nobody opens


def test_ranks_that_are_to_load_torch_otherwise_have_a_server_of_their_own(ask, tmp_path) -> None:
    ranks = ask(ATEN_CPU_CAPABILITY="default")
    assert ranks._own is not None
    assert ranks.wait(120) == 0
    assert [one["capability"] for one in told(tmp_path)] == ["DEFAULT", "DEFAULT"]


@pytest.mark.notebook
def test_the_ranks_of_a_notebook_come_from_the_server_that_its_study_has(tmp_path) -> None:
    """Its kernel sets variables of its own, none of which is read when torch is loaded."""
    cells = ["target = ''", "import json, os; json.dump(dict(os.environ), open(target, 'w'))"]
    found = [nbformat.v4.new_code_cell(cell) for cell in cells]
    found[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=found, metadata={"kernelspec": kernel})
    nbformat.write(notebook, tmp_path / "a.ipynb")
    target = tmp_path / "environment.json"
    execute(tmp_path / "a.ipynb", tmp_path / "b.ipynb", {"target": str(target)})
    assert read_early(json.loads(target.read_text())) == read_early(dict(os.environ))


LOOKS_FOR_GPUS = """
import sys, torch
from importlib import import_module
from ddl_tools.launch.forked_ranks import PRELOADED
for name in ("is_available", "device_count", "init"):
    setattr(torch.cuda, name, lambda: sys.exit("looked for a GPU"))
for name in PRELOADED:
    import_module(name)
"""


def test_loading_looks_for_no_gpu_which_would_spoil_cuda_in_a_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKS_FOR_GPUS],
        env={**os.environ, "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_a_rank_that_fails_ends_the_others_and_is_named(ask, tmp_path) -> None:
    begun = time.monotonic()
    assert ask("3").wait(60) == 1
    assert time.monotonic() - begun < 50  # the other one would sleep for a minute
    assert (tmp_path / "logs" / "launcher.log").read_text() == "rank 1 ended with 3\n"


def test_a_server_that_is_gone_is_replaced(ask, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(fork_server.ADDRESS, str(tmp_path / "nobody"))
    assert ask().wait(120) == 0


def test_a_leader_that_is_killed_takes_its_ranks_along(ask, tmp_path) -> None:
    ranks = ask("0")
    leader = psutil.Process(ranks.pid)
    wait_for((tmp_path / "0.json").exists, "rank 0 to begin; it stays for a minute")
    family = leader.children(recursive=True)
    assert len(family) >= 2  # the store and rank 0; rank 1 may have ended
    leader.kill()
    assert ranks.wait(10) == -9
    assert psutil.wait_procs(family, timeout=20)[1] == []


def test_an_interrupt_ends_the_leader_by_its_name_and_not_with_a_traceback(ask, tmp_path) -> None:
    ranks = ask("0")
    wait_for((tmp_path / "0.json").exists, "rank 0 to begin; it stays for a minute")
    os.kill(ranks.pid, signal.SIGINT)
    assert ranks.wait(10) == -9
    logs = (tmp_path / "logs").rglob("*.log")
    assert not any("Traceback" in log.read_text() for log in logs)


def test_a_server_that_cannot_be_started_is_an_error_for_users(monkeypatch) -> None:
    def fail(environment: object) -> None:
        raise OSError("no space left")

    monkeypatch.delenv(fork_server.ADDRESS, raising=False)
    monkeypatch.setattr(fork_server, "ForkServer", fail)
    with pytest.raises(LaunchError, match="forked from: no space left"), fork_server.shared():
        pytest.fail("there is no server")


def test_ranks_have_a_temporary_directory_that_goes_with_them(tmp_path) -> None:
    code = "import tempfile; print(tempfile.mkdtemp())"
    command = Command((sys.executable, "-c", code), 1)
    supervise.execute(command, tmp_path, dict(os.environ), lambda ranks: ranks.wait() and None)
    (output,) = tmp_path.rglob("stdout.log")
    left = Path(output.read_text().strip())
    assert left.parent.name.startswith(PREFIX)
    assert not left.parent.exists()


def test_a_closed_server_leaves_nothing(ask) -> None:
    server = ForkServer({**os.environ, "PYTHONPATH": import_path()})
    server.wait()
    server.close()
    assert processes.carrying(server._token) == []
    assert not Path(server.address).parent.exists()


@pytest.mark.timeout(60)
def test_a_server_is_closed_that_does_not_carry_its_token_yet(monkeypatch) -> None:
    """Between its start and its own first instruction it is not to be found by it."""
    monkeypatch.setattr(processes, "end_all", lambda token: None)
    server = ForkServer(os.environ)
    server.close()
    assert server._process.poll() is not None
