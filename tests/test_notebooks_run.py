"""The notebooks that run things work from top to bottom."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.launch.notebook import execute, submit
from ddl_tools.records.ledger import ledger
from ddl_tools.records.paths import NOTEBOOKS, results
from ddl_tools.records.run import read_record
from ddl_tools.study import Study
from tests.launch.running import injected, planned, study_file
from tests.pictures import write_pictures

pytestmark = pytest.mark.notebook

RUN, STUDY = NOTEBOOKS / "01_run.ipynb", NOTEBOOKS / "02_study.ipynb"
INTERACTIVE, RECOMMEND = NOTEBOOKS / "03_interactive.ipynb", NOTEBOOKS / "04_recommend.ipynb"


def text(path: Path) -> str:
    shown = []
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            shown.append(output.get("text") or "\n".join(map(str, output.get("data", {}).values())))
    return "\n".join(shown)


@pytest.mark.multiprocess
def test_run_notebook_opened_by_hand_runs_an_example(tmp_path: Path) -> None:
    target = tmp_path / "run.ipynb"
    execute(RUN, target, {})
    (run_dir,) = results().study("example").iterdir()
    assert read_record(run_dir).status == "completed"
    shown = text(target)
    assert re.search(r"\|#{24}\| 100% .*done", shown)
    assert "images/s" in shown
    assert "image/png" in target.read_text()
    execute(RUN, target, {})  # a second time it shows the record, and runs nothing
    assert len(read_record(run_dir).attempts) == 1
    assert "images/s" in text(target)


@pytest.mark.multiprocess
def test_study_notebook_plans_runs_and_shows(tmp_path: Path) -> None:
    path = study_file(tmp_path, repeats=3, epochs=2, loader_workers=[0, 1])
    target = tmp_path / "study.ipynb"
    execute(STUDY, target, {"study": str(path)})
    entries = ledger(Study.load(path), results())
    assert [entry.state for entry in entries] == ["completed"] * 6
    shown = text(target)
    assert "6 runs: 6 completed" in shown
    assert all(entry.spec.run_id in shown for entry in entries)
    assert ".svg" in shown
    assert "image/png" in target.read_text()


@pytest.mark.multiprocess
@pytest.mark.timeout(900)
@pytest.mark.extended
def test_interactive_notebook_turns_a_knob_and_survives_a_hang(tmp_path: Path) -> None:
    target = tmp_path / "interactive.ipynb"
    execute(INTERACTIVE, target, {"values": [4, 8], "train_images": 64, "show_hang": True})
    records = [read_record(folder) for folder in results().study("interactive").iterdir()]
    ends = {(r.spec.local_batch_size, r.spec.seed): (r.status, r.error) for r in records}
    for complete in ((4, 0), (8, 0), (8, 2)):
        assert ends[complete] == ("completed", None)
    status, error = ends[8, 1]
    assert (status, error.kind) == ("failed", "Timeout")
    shown = text(target)
    assert re.search(r"^ +1 +\S+ .* done$", shown, re.MULTILINE), "no line of rank 1"
    assert "no progress for 20 s" in shown
    assert "Traceback" not in shown


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.extended
@pytest.mark.timeout(600)
def test_recommend_notebook_answers_in_ten_lines(tmp_path: Path) -> None:
    data, target = write_pictures(tmp_path / "images", 128, 8), tmp_path / "recommend.ipynb"
    asked = {"model": "resnet8", "data": str(data), "minutes": 3.0, "image_size": 32}
    execute(RECOMMEND, target, asked)
    shown = text(target)
    assert "here: " in shown
    answer = shown.rpartition("\nuse ")[2]
    assert len(re.findall(r"^(?:speed|limit|training|start|page) ", answer, re.M)) == 5
    assert "image/png" in target.read_text()


def test_a_run_that_cannot_start_shows_why_and_its_settings_in_its_notebook() -> None:
    run_dir = planned(gpus_per_node=4096, seed=3)
    with pytest.raises(LaunchError, match="gpus_per_node = 4096"):
        submit(run_dir).wait()
    assert "use at most" in (run_dir / "run.ipynb").read_text()
    found, spec = injected(run_dir / "run.ipynb"), read_record(run_dir).spec
    assert found.pop("run_dir") == str(run_dir)
    assert found.pop("data") is None
    assert RunSpec(**found.pop("more"), **found) == spec


@pytest.mark.multiprocess
def test_parameters_of_the_run_notebook_plan_a_run(tmp_path: Path) -> None:
    target = tmp_path / "run.ipynb"
    given = {"strategy": "ddp", "gpus_per_node": "2", "epochs": 1, "more": "train_images: 64"}
    execute(RUN, target, given)
    (run_dir,) = results().study("example").iterdir()
    record = read_record(run_dir)
    assert record.status == "completed"
    spec = record.spec
    assert (spec.strategy, spec.world_size, spec.epochs) == ("ddp", 2, 1)
    assert (spec.train_images, spec.loader, spec.model) == (64, "synthetic", "resnet18")
    with pytest.raises(LaunchError, match=r"epochs = 7, but the record of run .* has 1"):
        execute(RUN, target, {"run_dir": str(run_dir), "epochs": 7})
    assert read_record(run_dir) == record


@pytest.mark.parametrize(
    ("notebook", "given", "words"),
    [
        (RUN, {"nodes": 2, "strategy": "ddp"}, "nodes = 2: .*ddl study submit"),
        (RECOMMEND, {"workers": "(1, 99)", "batch": "4"}, "99: this machine has"),
    ],
)
def test_values_that_this_machine_lacks_are_named(
    notebook: Path, given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    given = given | {"data": str(write_pictures(tmp_path / "images", 8, 8))}
    with pytest.raises(LaunchError, match=words):
        execute(notebook, tmp_path / "done.ipynb", given)
