"""Commands that start in a stranger's folder import none of its Python files."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.datasets.verify import verify
from ddl_tools.emulation import nodes
from ddl_tools.launch.interactive import Engines
from ddl_tools.launch.local_ranks import SERVER
from ddl_tools.launch.notebook import execute
from ddl_tools.processes import import_path
from ddl_tools.records.paths import Tree
from ddl_tools.records.run import read_record
from ddl_tools.records.stored import run_dirs
from tests.commands import run
from tests.launch.running import TINY, ddl, study_file
from tests.launch.stand_ins import StandIns
from tests.pictures import write_pictures

VARIABLE = "PYTHONSAFEPATH"
# As the console script, whose own folder comes first in `sys.path`; -P would be inherited.
DDL = "from ddl_tools.cli import main\nif __name__ == '__main__':\n    main()\n"
MODULES = ("torchvision", "pickle", "socket", "signal", "multiprocessing", "ddl_core")
NETWORK = """
from torch import nn
def build(classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))
"""

Command = Callable[..., str]


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """Name the file in which the modules of the stranger's folder write that they are imported."""
    return tmp_path / "imported"


@pytest.fixture
def folder(tmp_path: Path, imported: Path) -> Path:
    """Make a stranger's folder, with a set of images."""
    path = write_pictures(tmp_path / "stranger", 8, 4)
    for name in MODULES:
        (path / name).mkdir()
        text = f"with open({str(imported)!r}, 'a') as file:\n    print(__file__, file=file)\n"
        (path / name / "__init__.py").write_text(text)
    return path


@pytest.fixture
def command(tmp_path: Path, folder: Path) -> Command:
    """Run `ddl` in the stranger's folder."""
    script = tmp_path / "programs" / "ddl"
    script.parent.mkdir()
    script.write_text(DDL)

    def call(*words: object, **variables: str) -> str:
        own = {name: value for name, value in os.environ.items() if name != SERVER}
        own |= {"PYTHONPATH": import_path(), "DDL_RESULTS": str(tmp_path / "results"), **variables}
        done = run(sys.executable, script, *words, cwd=folder, env=own)
        return done.stdout + done.stderr

    return call


@pytest.mark.multiprocess
@pytest.mark.slow
def test_reading_a_set_imports_nothing_of_its_folder(command: Command, imported: Path) -> None:
    said = command("data", "verify", ".", "--processes", 2)
    assert "\nok\nnext: " in said, said
    assert not imported.exists(), imported.read_text()


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_program_that_reads_a_set_imports_nothing_of_its_folder(
    folder: Path, imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert not verify(Path(), processes=2).problems
    assert not imported.exists(), imported.read_text()


@pytest.mark.multiprocess
@pytest.mark.slow
def test_looking_at_a_machine_imports_nothing_of_the_folder(
    command: Command, imported: Path
) -> None:
    said = command("doctor")
    assert "can run here" in said
    assert not imported.exists(), imported.read_text()


def test_trying_to_make_nodes_imports_nothing_of_the_folder(
    folder: Path, imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they can be made or not, and by whomever it is called."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(nodes.namespaces, "missing", lambda programs: ())
    with suppress(LaunchError):
        nodes.check_support()
    assert not imported.exists(), imported.read_text()


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_run_imports_its_network_from_the_path_and_nothing_of_the_folder(
    command: Command, imported: Path, tmp_path: Path
) -> None:
    networks = tmp_path / "networks"
    networks.mkdir()
    (networks / "ours.py").write_text(NETWORK)
    fields = {**TINY, "model": "ours:build"}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    path = os.pathsep.join([import_path(), str(networks)])
    said = command("run", *options, PYTHONPATH=path)
    (done,) = run_dirs("adhoc", Tree(tmp_path / "results"))
    assert read_record(done).status == "completed", said
    assert not imported.exists(), imported.read_text()


def test_an_empty_item_of_the_path_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/a::/b:")
    assert import_path().split(os.pathsep)[1:] == ["/a", "/b"]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_engines_import_nothing_of_the_folder(
    folder: Path, imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with Engines(RunSpec(**TINY)) as engines:
        assert len(engines.ranks) == 1
    assert not imported.exists(), imported.read_text()


@pytest.mark.notebook
@pytest.mark.slow
def test_the_kernel_of_a_users_notebook_imports_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("")
    code = f"import beside, os\nassert {VARIABLE!r} not in os.environ"
    notebook = tmp_path / "mine.ipynb"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [nbformat.v4.new_code_cell(code)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), notebook)
    execute(notebook, notebook, {})


@pytest.mark.parametrize("own", [None, "1"])
def test_a_job_begins_with_the_users_own_variables(
    tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    """`sbatch` hands its environment to the setup lines of the site."""
    if own:
        monkeypatch.setenv(VARIABLE, own)
    seen = tmp_path / "seen"
    for program in ("squeue", "scontrol"):
        stand_ins.add(program)
    stand_ins.script("sbatch", f"#!/bin/sh\nenv >{seen}\necho 17\n")
    path = study_file(tmp_path, strategy="ddp")
    ddl("study", "submit", path, "--site", "generic", status=0)
    values = [one for one in seen.read_text().splitlines() if one.startswith(VARIABLE)]
    assert values == ([f"{VARIABLE}={own}"] if own else [])
