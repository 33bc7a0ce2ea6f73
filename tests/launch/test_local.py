import json
import sys
from pathlib import Path
from threading import Event
from typing import Any

import nbclient
import nbformat
import psutil
import pytest

from ddl_core.errors import DDLError, Interrupted, LaunchError, RecordError
from ddl_tools.launch import local
from ddl_tools.launch.local import Local
from ddl_tools.launch.notebook import execute
from ddl_tools.launch.screen import screen
from ddl_tools.records.ledger import entry, exclusive
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.progress import read_progress
from ddl_tools.records.run import read_record, write_record
from tests.launch.running import ENDLESS, planned, processes_of, wait_for


def small_notebook(path: Path, *cells: str, parameters: str = "name = ''") -> Path:
    first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    rest = [nbformat.v4.new_code_cell(cell) for cell in cells]
    metadata = {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[first, *rest], metadata=metadata), path)
    return path


def output(path: Path) -> Any:
    return nbformat.read(path, as_version=4).cells[-1].outputs[0]


def test_a_complete_run_is_not_started() -> None:
    run_dir = planned()
    write_record(run_dir, read_record(run_dir).model_copy(update={"status": "completed"}))
    with pytest.raises(LaunchError, match="is complete"):
        Local().submit(run_dir)


def test_a_run_at_work_elsewhere_is_not_started() -> None:
    run_dir = planned()
    with (
        exclusive(RunFiles(run_dir).lock, "test"),
        pytest.raises(LaunchError, match="by another process"),
    ):
        Local().submit(run_dir)


def test_an_unknown_parameter_is_refused(tmp_path: Path) -> None:
    notebook = small_notebook(tmp_path / "a.ipynb")
    with pytest.raises(LaunchError, match="no parameter nam; its parameters are: name"):
        execute(notebook, tmp_path / "b.ipynb", {"nam": "x"})
    assert not (tmp_path / "b.ipynb").exists()


def test_what_the_notebook_could_not_record_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LaunchError("the kernel did not start")

    monkeypatch.setattr("ddl_tools.launch.notebook.write_lab_book", fail)
    run_dir = planned()
    with pytest.raises(LaunchError, match="the kernel did not start"):
        Local().submit(run_dir).wait(timeout=10)
    assert read_record(run_dir).status == "failed"


def test_an_interrupted_cell_is_no_failure_of_the_notebook(tmp_path: Path) -> None:
    notebook = small_notebook(tmp_path / "a.ipynb", "raise KeyboardInterrupt")
    with pytest.raises(Interrupted):
        execute(notebook, tmp_path / "b.ipynb", {})


@pytest.mark.parametrize("error", [LaunchError("the kernel did not survive"), Interrupted("x")])
def test_a_run_that_is_stopped_before_its_ranks_start_has_not_failed(
    error: DDLError, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Event()

    def die(*_: object) -> None:
        asked.wait(10)
        raise error

    monkeypatch.setattr("ddl_tools.launch.notebook.write_lab_book", die)
    run_dir = planned()
    job = Local().submit(run_dir)
    job.interrupt()
    asked.set()
    with pytest.raises(LaunchError, match="Interrupted"):
        job.wait(timeout=10)
    assert entry(read_record(run_dir).spec, run_dir).state == "interrupted"


def test_what_cannot_be_recorded_is_told_and_ends_no_thread_with_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise LaunchError("the kernel did not start")

    def refuse(*_: object) -> None:
        raise RecordError("the disk is full")

    monkeypatch.setattr("ddl_tools.launch.notebook.write_lab_book", fail)
    monkeypatch.setattr(local, "finish_run", refuse)
    with pytest.raises(RecordError, match="the disk is full"):
        Local().submit(planned()).wait(timeout=10)


def test_a_complete_run_stays_complete_if_its_report_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def complete(run_dir: Path, *_: object) -> None:
        write_record(run_dir, read_record(run_dir).model_copy(update={"status": "completed"}))
        raise DDLError("no figure")

    monkeypatch.setattr("ddl_tools.launch.notebook.write_lab_book", complete)
    assert Local().submit(planned()).wait(timeout=10).status == "completed"
    assert "no figure" in capsys.readouterr().err


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
def test_only_the_kernel_works_in_the_folder_of_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads of this process keep their working directory while a notebook runs."""
    there = tmp_path / "notebooks"
    there.mkdir()
    notebook = small_notebook(there / "a.ipynb", "import os; print(os.getcwd())")
    seen: set[Path] = set()
    monkeypatch.setattr(
        nbclient.NotebookClient,
        "execute_cell",
        _looking(nbclient.NotebookClient.execute_cell, seen),
    )
    execute(notebook, tmp_path / "b.ipynb", {})
    assert output(tmp_path / "b.ipynb").text.strip() == str(there)
    assert seen == {Path.cwd()}


def _looking(execute_cell: Any, seen: set[Path]) -> Any:
    def execute(*arguments: Any, **options: Any) -> Any:
        seen.add(Path.cwd())
        return execute_cell(*arguments, **options)

    return execute


@pytest.mark.notebook
def test_a_lab_book_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    target = tmp_path / "b.ipynb"
    (target / "in the way").mkdir(parents=True)
    with pytest.raises(RecordError, match=r"cannot write .*b\.ipynb.*--results DIR"):
        execute(small_notebook(tmp_path / "a.ipynb"), target, {})


@pytest.mark.notebook
def test_a_failing_cell_is_kept_in_the_lab_book(tmp_path: Path) -> None:
    notebook = small_notebook(tmp_path / "a.ipynb", "1 / 0")
    with pytest.raises(LaunchError, match="ZeroDivisionError: division by zero"):
        execute(notebook, tmp_path / "b.ipynb", {})
    assert output(tmp_path / "b.ipynb").ename == "ZeroDivisionError"


@pytest.mark.notebook
def test_a_dead_kernel_is_an_error(tmp_path: Path) -> None:
    notebook = small_notebook(tmp_path / "a.ipynb", "import os; os._exit(3)")
    with pytest.raises(LaunchError, match="did not survive"):
        execute(notebook, tmp_path / "b.ipynb", {})


@pytest.mark.notebook
def test_what_a_kernel_says_itself_is_told_if_it_dies_and_never_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """At its end it may log errors of its own closed sockets; they are not the user's."""
    last = "import os, sys; print('my last words', file=sys.__stderr__, flush=True)"
    talking = small_notebook(tmp_path / "a.ipynb", last)
    execute(talking, tmp_path / "c.ipynb", {})
    dying = small_notebook(tmp_path / "b.ipynb", last + "; os._exit(3)")
    with pytest.raises(LaunchError, match=r"last lines of kernel.log:\n  my last words"):
        execute(dying, tmp_path / "c.ipynb", {})
    assert "my last words" not in capfd.readouterr().err


@pytest.mark.notebook
@pytest.mark.multiprocess
def test_a_job_can_be_cancelled() -> None:
    run_dir = planned(**ENDLESS)
    job = Local().submit(run_dir)
    wait_for(lambda: read_progress(run_dir), "the first sign of life")
    assert not job.ended
    assert job.state == "running"
    with pytest.raises(LaunchError, match="has not ended within"):
        job.wait(timeout=0.1)
    job.cancel()
    assert job.ended
    assert processes_of(run_dir) == []
    with pytest.raises(LaunchError, match="Interrupted: stopped by the user"):
        job.wait()
    assert [path.name for path in job.logs.iterdir()] == ["attempt_0"]


@pytest.mark.notebook
@pytest.mark.multiprocess
def test_a_killed_kernel_fails_the_run_and_leaves_no_rank() -> None:
    run_dir = planned(**ENDLESS)
    job = Local().submit(run_dir)
    wait_for(lambda: read_progress(run_dir), "the first sign of life")
    psutil.Process(job._kernel.pid).kill()
    with pytest.raises(LaunchError, match="did not survive"):
        job.wait(timeout=60)
    wait_for(lambda: not processes_of(run_dir), "the ranks to end", seconds=40)
    assert read_record(run_dir).status == "failed"


def test_a_run_that_evaluates_is_still_the_one_at_work(capsys: pytest.CaptureFixture[str]) -> None:
    class Job:
        run_dir = planned()
        looks = iter([False, True])

        @property
        def ended(self) -> bool:
            return next(self.looks)

    state = {"phase": "eval", "epoch": 0, "epochs": 1, "step": 1, "steps": 2}
    RunFiles(Job.run_dir).progress.write_text(json.dumps(state))
    local.show_until_ended(Job(), screen(2), 0)  # type: ignore[arg-type]
    assert "run 1/2 " in capsys.readouterr().err
