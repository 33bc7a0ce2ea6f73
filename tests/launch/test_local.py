"""Notebooks executed by papermill, and runs that they start."""

import json
import sys
from pathlib import Path
from threading import Event
from typing import Any

import nbformat
import psutil
import pytest

from ddl_core.errors import DDLError, Interrupted, LaunchError
from ddl_tools.launch.notebook import cancel_all, execute, submit
from ddl_tools.records.ledger import entry
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.progress import read_progress
from ddl_tools.records.run import Failure, read_record
from tests.launch.running import ENDLESS, change, error_of, planned, processes_of, wait_for


def small_notebook(path: Path, *cells: str) -> Path:
    first = nbformat.v4.new_code_cell("name = ''", metadata={"tags": ["parameters"]})
    rest = [nbformat.v4.new_code_cell(cell) for cell in cells]
    metadata = {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[first, *rest], metadata=metadata), path)
    return path


def output(path: Path) -> Any:
    return nbformat.read(path, as_version=4).cells[-1].outputs[0]


def test_a_complete_run_is_not_started() -> None:
    run_dir = planned()
    change(run_dir, status="completed")
    with pytest.raises(LaunchError, match="is complete"):
        submit(run_dir)


@pytest.mark.parametrize(
    ("error", "stopped", "state"),
    [
        (LaunchError("the kernel did not start"), False, "failed"),
        (LaunchError("the kernel did not survive"), True, "interrupted"),
        (Interrupted("x"), True, "interrupted"),
    ],
)
def test_what_the_notebook_could_not_record_is_recorded(
    error: DDLError, stopped: bool, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = Event()

    def die(*_: object) -> None:
        may_end.wait(10)
        raise error

    monkeypatch.setattr("ddl_tools.launch.notebook.execute", die)
    run_dir = planned()
    job = submit(run_dir)
    if stopped:
        job.interrupt()
    may_end.set()
    with pytest.raises(LaunchError, match="Interrupted" if stopped else "did not start"):
        job.wait(timeout=10)
    assert entry(read_record(run_dir).spec, run_dir).state == state


PARAMETERS = {
    **{"cell_type": "code", "id": "a", "execution_count": None, "outputs": []},
    "metadata": {"tags": ["parameters"]},
    "source": "name = ''",
}


def book(**fields: object) -> str:
    whole = {"cells": [PARAMETERS], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole | fields)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("", ""),
        ("<<<<<<< HEAD\n" + book(), ""),
        ("[]", ""),
        ("{}", ""),
        ("\x00", ""),
        (book(nbformat=3, nbformat_minor=0, worksheets=[], cells=[]), ""),
        (book(cells=[]), "tag 'parameters'"),
        (book(cells=[{**PARAMETERS, "metadata": {}}]), "tag 'parameters' names name"),
        (book(cells=[{**PARAMETERS, "source": "other = 1"}]), "tag 'parameters' names name"),
    ],
)
def test_a_notebook_that_takes_no_parameters_is_refused(content, words, tmp_path: Path) -> None:
    notebook, target = tmp_path / "own.ipynb", tmp_path / "done.ipynb"
    if content is not None:
        notebook.write_text(content)
    with pytest.raises(LaunchError) as caught:
        execute(notebook, target, {"name": "x"})
    text = str(caught.value)
    assert f"{notebook} cannot be executed: " in text
    assert words in text
    assert f"git checkout {tmp_path}" in text
    assert not target.exists()


@pytest.mark.notebook
def test_a_notebook_that_names_no_kernel_is_executed(tmp_path: Path) -> None:
    notebook = tmp_path / "own.ipynb"
    notebook.write_text(book())
    execute(notebook, tmp_path / "done.ipynb", {"name": "x"})
    assert 'name = "x"' in (tmp_path / "done.ipynb").read_text().replace("\\", "")


def test_a_package_that_is_missing_is_named_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "papermill", None)  # as if it were not installed
    run_dir = planned()
    with pytest.raises(LaunchError, match=r"the package 'papermill'.*not installed.*make env"):
        submit(run_dir).wait(timeout=60)
    error = error_of(run_dir)
    assert (error.kind, error.category) == ("NotInstalledError", "environment")


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit("odd"), OSError("odd")])
def test_an_error_of_any_kind_is_recorded_and_its_traceback_kept(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("ddl_tools.launch.notebook.execute", fail)
    run_dir = planned()
    with pytest.raises(LaunchError, match=f"was not executed: {type(error).__name__}: odd"):
        submit(run_dir).wait(timeout=10)
    assert error_of(run_dir).category == "code"
    assert "in fail" in (RunFiles(run_dir).logs / "notebook.log").read_text()


def test_an_error_that_meets_an_error_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("odd")

    for name in ("execute", "finish_run"):
        monkeypatch.setattr(f"ddl_tools.launch.notebook.{name}", fail)
    with pytest.raises(LaunchError, match="odd"):
        submit(planned()).wait(timeout=10)


def test_a_run_that_is_tried_again_does_not_keep_its_old_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise LaunchError("the new one")

    monkeypatch.setattr("ddl_tools.launch.notebook.execute", fail)
    run_dir = planned()
    change(run_dir, status="failed", error=Failure.of("Killed", "the old one"))
    with pytest.raises(LaunchError, match="the new one"):
        submit(run_dir).wait(timeout=10)
    assert "the new one" in error_of(run_dir).message


@pytest.mark.notebook
def test_the_kernel_is_this_python_and_opens_no_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / "home" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    (foreign / "kernel.json").write_text(
        json.dumps({"argv": ["/bin/false"], "display_name": "", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    cells = (
        "import sys, json, ipykernel.kernelapp as k",
        ("print(json.dumps([sys.executable, name, k.IPKernelApp.instance().transport]))"),
    )
    target = tmp_path / "run.ipynb"
    execute(small_notebook(tmp_path / "a.ipynb", *cells), target, {"name": "value"})
    assert json.loads(output(target).text) == [sys.executable, "value", "ipc"]
    assert list(long.iterdir()) == []
    assert [path.name for path in tmp_path.glob(".*.ipynb")] == []


@pytest.mark.notebook
@pytest.mark.parametrize(
    ("cell", "error", "words", "kept"),
    [
        ("1 / 0", LaunchError, "ZeroDivisionError: division by zero", "ZeroDivisionError"),
        ("raise KeyboardInterrupt", Interrupted, "told to stop", "KeyboardInterrupt"),
        ("import os; os._exit(3)", LaunchError, "did not survive", None),
    ],
)
def test_a_cell_that_fails_is_kept_in_the_notebook(
    tmp_path: Path, cell: str, error: type[DDLError], words: str, kept: str | None
) -> None:
    notebook = small_notebook(tmp_path / "a.ipynb", cell)
    with pytest.raises(error, match=words):
        execute(notebook, tmp_path / "b.ipynb", {})
    if kept:
        assert output(tmp_path / "b.ipynb").ename == kept


class Waiting:
    """A job that ends once all jobs were told to."""

    def __init__(self, told: set["Waiting"], count: int) -> None:
        self.told, self.count = told, count

    @property
    def ended(self) -> bool:
        return len(self.told) == self.count

    def interrupt(self) -> None:
        self.told.add(self)

    def join(self, timeout: float) -> None:
        assert self.ended, "another job was waited for before this one was told"

    def kill(self) -> None:
        raise AssertionError("it has ended by itself")


@pytest.mark.notebook
def test_what_a_kernel_without_memory_prints_is_named(tmp_path: Path) -> None:
    """It may print its error where it would else report it."""
    silent = (
        "import sys; get_ipython().showtraceback = lambda *a, **k: sys.stderr.write('MemoryError')"
    )
    notebook = small_notebook(tmp_path / "a.ipynb", silent, "raise MemoryError")
    with pytest.raises(LaunchError, match=r"a\.ipynb failed: MemoryError$") as raised:
        execute(notebook, tmp_path / "b.ipynb", {})
    assert raised.value.category == "out_of_memory"


def test_runs_at_the_same_time_are_told_to_end_together() -> None:
    """One after the other, twelve runs took longer than 20 s to end."""
    told: set[Waiting] = set()
    cancel_all([Waiting(told, 3) for _ in range(3)])
    assert len(told) == 3


@pytest.mark.notebook
@pytest.mark.multiprocess
@pytest.mark.parametrize("kill", [False, True])
def test_a_run_that_is_cancelled_or_loses_its_kernel_leaves_no_rank(kill: bool) -> None:
    run_dir = planned(**ENDLESS)
    job = submit(run_dir)
    wait_for(lambda: read_progress(run_dir), "the first sign of life")
    assert (job.ended, job.state) == (False, "running")
    if kill:
        psutil.Process(job._kernel.pid).kill()
    else:
        cancel_all([job])
        assert processes_of(run_dir) == []
    with pytest.raises(
        LaunchError, match="did not survive" if kill else "Interrupted: stopped by the user"
    ):
        job.wait(timeout=60)
    assert job.ended
    wait_for(lambda: not processes_of(run_dir), "the ranks to end", seconds=40)
    assert read_record(run_dir).status == "failed"
