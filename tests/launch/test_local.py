import json
import sys
from pathlib import Path
from threading import Event
from typing import Any

import nbformat
import psutil
import pytest

from ddl_core.errors import DDLError, Interrupted, LaunchError
from ddl_tools.launch.notebook import execute, submit
from ddl_tools.records.ledger import entry
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
        submit(run_dir)


def test_what_the_notebook_could_not_record_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LaunchError("the kernel did not start")

    monkeypatch.setattr("ddl_tools.launch.notebook.execute", fail)
    run_dir = planned()
    with pytest.raises(LaunchError, match="the kernel did not start"):
        submit(run_dir).wait(timeout=10)
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

    monkeypatch.setattr("ddl_tools.launch.notebook.execute", die)
    run_dir = planned()
    job = submit(run_dir)
    job.interrupt()
    asked.set()
    with pytest.raises(LaunchError, match="Interrupted"):
        job.wait(timeout=10)
    assert entry(read_record(run_dir).spec, run_dir).state == "interrupted"


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
@pytest.mark.multiprocess
def test_a_job_can_be_cancelled() -> None:
    run_dir = planned(**ENDLESS)
    job = submit(run_dir)
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
    job = submit(run_dir)
    wait_for(lambda: read_progress(run_dir), "the first sign of life")
    psutil.Process(job._kernel.pid).kill()
    with pytest.raises(LaunchError, match="did not survive"):
        job.wait(timeout=60)
    wait_for(lambda: not processes_of(run_dir), "the ranks to end", seconds=40)
    assert read_record(run_dir).status == "failed"
