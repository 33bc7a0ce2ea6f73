"""Ranks forked from a process that has imported torch."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from ddl_core.errors import LaunchError
from ddl_core.system import PREFIX
from ddl_tools import processes
from ddl_tools.launch import local_ranks, ranks
from ddl_tools.launch.commands import Command
from ddl_tools.launch.local_ranks import LocalRanks
from ddl_tools.launch.notebook import execute
from ddl_tools.processes import import_path
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
            token = uuid.uuid4().hex
            ranks = local_ranks.local_ranks(
                Command(words, 2), tmp_path / "logs", environment, token
            )
            stack.callback(processes.end_all, token)
            return stack.enter_context(ranks)

        yield start


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_each_rank_is_at_its_place_with_the_variables_of_its_run(ask, tmp_path) -> None:
    assert ask(DDL_COLOUR="red").wait(60) == 0
    first, second = told(tmp_path)
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"]) == ("0", "1")
    assert first["WORLD_SIZE"] == "2"
    assert first["DDL_COLOUR"] == "red"
    assert first["main"] == "tests.launch.place_worker"
    assert Path(first["folder"]) == Path.cwd()


def test_one_server_serves_many_runs_and_has_no_threads(ask) -> None:
    leaders = []
    for number in range(2):
        # As torch's compiler sets it, in a process that imports it after the server began.
        ranks = ask("0", TORCHINDUCTOR_CACHE_DIR=f"/somewhere/{number}")
        leaders.append(psutil.Process(ranks.pid).parent())
        os.kill(ranks.pid, 9)
        assert ranks.wait(10) == -9
    assert leaders[0] == leaders[1]
    assert leaders[0].num_threads() == 1  # else a fork might inherit a lock that nobody opens


def test_ranks_that_are_to_load_torch_otherwise_have_a_server_of_their_own(ask, tmp_path) -> None:
    ranks = ask(ATEN_CPU_CAPABILITY="default")
    assert ranks.wait(120) == 0
    assert [one["capability"] for one in told(tmp_path)] == ["DEFAULT", "DEFAULT"]


@pytest.mark.notebook
def test_the_ranks_of_a_notebook_come_from_the_server_that_its_study_has(tmp_path) -> None:
    """Its kernel sets variables of its own, none of which is read when torch is loaded."""
    cells = ["target = ''", "import json, os; json.dump(dict(os.environ), open(target, 'w'))"]
    code = [nbformat.v4.new_code_cell(cell) for cell in cells]
    code[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=code, metadata={"kernelspec": kernel})
    nbformat.write(notebook, tmp_path / "a.ipynb")
    target = tmp_path / "environment.json"
    execute(tmp_path / "a.ipynb", tmp_path / "b.ipynb", {"target": str(target)})
    found = json.loads(target.read_text())
    assert local_ranks._hash(found) == local_ranks._hash(os.environ)


LOOKS_FOR_GPUS = """
import sys, torch
from importlib import import_module
from ddl_tools.launch.local_ranks import PRELOADED
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


def test_a_server_that_is_gone_is_replaced(ask, tmp_path, monkeypatch) -> None:
    hashed = os.environ[local_ranks.SERVER].partition(" ")[0]
    monkeypatch.setenv(local_ranks.SERVER, f"{hashed} {tmp_path}/nobody")
    assert ask().wait(120) == 0


def test_a_leader_that_is_killed_takes_its_ranks_along(ask, tmp_path) -> None:
    ranks = ask("0")
    leader = psutil.Process(ranks.pid)
    wait_for((tmp_path / "0.json").exists, "rank 0 to begin; it stays for a minute")
    family = leader.children(recursive=True)
    assert family  # rank 1 may have ended
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
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.delenv(local_ranks.SERVER, raising=False)
    monkeypatch.setattr(processes, "start", fail)
    with pytest.raises(LaunchError, match="forked from: no space left"), local_ranks.shared():
        pytest.fail("there is no server")


def test_ranks_have_a_temporary_directory_that_goes_with_them(tmp_path) -> None:
    code = "import tempfile; print(tempfile.mkdtemp())"
    command = Command((sys.executable, "-c", code), 1)
    with ranks.start(command, tmp_path, processes.inherited(), uuid.uuid4().hex) as launcher:
        launcher.wait(60)
    (output,) = tmp_path.rglob("stdout.log")
    left = Path(output.read_text().strip())
    assert left.parent.name.startswith(PREFIX)
    assert not left.parent.exists()


def test_a_server_leaves_nothing(monkeypatch) -> None:
    monkeypatch.delenv(local_ranks.SERVER, raising=False)
    before = psutil.Process().children()
    with local_ranks.shared():
        _, _, address = os.environ[local_ranks.SERVER].partition(" ")
        new = (one for one in psutil.Process().children() if one not in before)
        (server,) = filter(_serves, new)
    assert not server.is_running()
    assert not Path(address).parent.exists()


def _serves(process: psutil.Process) -> bool:
    return local_ranks.PROGRAM in process.cmdline()
