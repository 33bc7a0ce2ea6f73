"""A command starts where a call named it, and nowhere else: a walk over the ways to start one."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import DDLError, LaunchError
from ddl_tools.cli import study as cli
from ddl_tools.consent import allowing, origin
from ddl_tools.launch import notebook
from ddl_tools.launch.interactive import Engines
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.launch.slurm import job
from ddl_tools.launch.study import run_one, run_study
from ddl_tools.processes import import_path
from ddl_tools.records.ledger import plan
from ddl_tools.records.paths import NOTEBOOKS, Tree, results
from ddl_tools.records.run import read_record
from ddl_tools.study import Study
from tests.launch.running import TINY, ddl, finish

WORK = "import time\nwhile True:\n    time.sleep(0.1)\n    print('{\"images\": 1}')\n"
pytestmark = pytest.mark.multiprocess


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name the file that a command makes where it starts."""
    for name in ("DDL_COMMANDS", "DDL_COMMANDS_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "started"


@pytest.fixture
def command(trace: Path, tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(f"open({str(trace)!r}, 'w').close()\n{WORK}")
    return f"{sys.executable} {path}"


def study(command: str, repeats: int = 2, **axes: list[object]) -> Study:
    base = {"framework": "command", "command": command, "epochs": 2, "discard_steps": 1}
    content = {"name": "own", "question": "?", "base": base, "axes": axes, "repeats": repeats}
    return Study.model_validate(content)


@pytest.fixture
def stored(command: str) -> Path:
    """Return the folder of a run that is to be started, of a study that somebody sent."""
    complete, left = plan(study(command), results())
    finish(complete.directory)
    return left.directory


def by_module(module: str) -> Callable[[Path], object]:
    words = [sys.executable, "-m", module]
    environment = {**os.environ, "PYTHONPATH": import_path()}
    return lambda folder: subprocess.run([*words, folder], env=environment, check=False)


def by_engines(folder: Path) -> None:
    with Engines(RunSpec(**TINY)) as engines:
        engines.run(folder)


def by_notebook(folder: Path) -> None:
    notebook.execute(NOTEBOOKS / "01_run.ipynb", folder / "x.ipynb", {"run_dir": str(folder)})


def by_another_study(folder: Path) -> None:
    other = RunSpec(framework="command", command="true")
    with allowing([other.command]):
        run_ranks(folder)


WAYS = {
    "the launcher": run_ranks,
    "a run's job": run_one,
    "a notebook's job": lambda folder: notebook.submit(folder).wait(),
    "a SLURM job": lambda folder: job.main([str(folder)]),
    "a SLURM job by hand": by_module("ddl_tools.launch.slurm.job"),
    "a rank by hand": by_module("ddl_tools.rank.worker"),
    "the notebook of a run": by_notebook,
    "engines": by_engines,
    "a call that names another command": by_another_study,
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_command_of_a_record_starts_in_no_way(way: str, stored: Path, trace: Path) -> None:
    with suppress(DDLError):
        WAYS[way](stored)
    assert not trace.exists()
    assert read_record(stored).status != "completed"


CALLS = (
    *("study plan", "study run", "study resume", "study status", "study compare", "study cancel"),
    *("study verify", "study publish", "study submit --site localtest", "figures --study"),
)


@pytest.mark.parametrize("call", CALLS)
def test_a_stored_study_is_started_by_no_command(
    call: str, stored: Path, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "committed", lambda: Tree(tmp_path / "published"))
    for name in ("own", results().asked("own")):
        ddl(*call.split(), name, "--results", results().root)
    assert not trace.exists()
    assert read_record(stored).status == "planned"


@pytest.mark.slow
@pytest.mark.extended
def test_a_report_starts_no_command(stored: Path, trace: Path) -> None:
    ddl("report", "--results", results().root)
    assert not trace.exists()
    assert read_record(stored).status == "planned"


@pytest.mark.slow
def test_a_single_run_names_its_command(command: str, trace: Path) -> None:
    words = ["run", "--framework", "command", "--command", command]
    words += ["--epochs", "2", "--discard-steps", "1"]
    shown = ddl(*words, "--dry-run", status=0).output
    assert command in shown
    assert not trace.exists()
    assert not results().root.exists()
    done = ddl(*words, status=0).output
    assert done.index(command) < done.index("completed")
    assert trace.exists()


def test_a_further_run_of_the_baseline_is_of_the_study(command: str) -> None:
    """The runs of the baseline are complete; a block of what is left needs one more."""
    base = {"framework": "command", "command": f"{command} {{lr}}", "epochs": 2}
    asked = Study.model_validate(
        {
            **{"name": "own", "question": "?", "base": base, "axes": {"lr": [1, 2]}, "repeats": 1},
            "interleave": {"reference": {"lr": 1}},
        }
    )
    (baseline, other) = plan(asked, results())
    finish(baseline.directory)
    begun = []

    def start(folder: Path) -> notebook.LocalJob:
        origin(str(read_record(folder).spec.command))
        begun.append(folder.name)
        raise LaunchError("not now")

    run_study(asked, results(), progress=False, submit=start)
    assert begun == [asked.reference(1).run_id, other.spec.run_id]
