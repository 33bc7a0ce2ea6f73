"""The notebooks that show results: their form, and that they work from top to bottom."""

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from ddl_tools.launch.report import SHOWING
from ddl_tools.records.paths import NOTEBOOKS
from tests.analysis.conftest import MakeRun, laptop, make_run, tree  # noqa: F401
from tests.analysis.figures.test_libraries import every_configuration  # noqa: F401
from tests.analysis.figures.test_memory_per_rank import made

NUMBERED = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
RESULTS = sorted(NOTEBOOKS.glob(SHOWING))
THROUGHPUT, SCALING, LOADERS, TIME, SCHEDULES, ACCURACY, CLAIMS, MEMORY, RELATED, ADVISE = RESULTS
EACH = pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
SECTIONS = ["## Answer", "## How to read it", "## Limits", "## With your own runs", "## Appendix"]


SHOWN = ("stream", "display_data", "execute_result")
Show = Callable[..., nbformat.NotebookNode]


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def show() -> Iterator[Show]:
    """Execute notebooks with parameters, all in one kernel, which takes seconds to start."""
    manager, client = start_new_kernel(cwd=str(NOTEBOOKS))

    def execute(path: Path, **parameters: Any) -> nbformat.NotebookNode:
        notebook = parameterize_notebook(load_notebook_node(str(path)), parameters)
        client.execute("%reset -f", reply=True)
        for cell in code_cells(notebook):
            said: list[Any] = []
            done = client.execute_interactive(cell.source, output_hook=said.append, timeout=200)
            assert done["content"]["status"] == "ok", done["content"]
            shown = [one for one in said if one["msg_type"] in SHOWN]
            cell.outputs = [nbformat.v4.output_from_msg(one) for one in shown]
        return notebook

    yield execute
    client.stop_channels()
    manager.shutdown_kernel()


def texts(cell: nbformat.NotebookNode) -> str:
    return "\n".join(
        output.get("text") or output.data.get("text/markdown") or output.data.get("text/plain", "")
        for output in cell.outputs
    )


def text_of(notebook: nbformat.NotebookNode) -> str:
    return "\n".join(map(texts, code_cells(notebook)))


def pictures(notebook: nbformat.NotebookNode) -> int:
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def assert_shows(notebook: nbformat.NotebookNode, figures: int, *words: str) -> None:
    assert pictures(notebook) == figures
    text = text_of(notebook)
    for word in words:
        assert word in text


@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.splitlines()[0].endswith("?")
    cells = code_cells(notebook)
    assert len(cells) <= 16
    assert [cell.metadata.get("tags") for cell in cells].count(["parameters"]) == 1
    for cell in cells:
        assert cell.outputs == []
        assert cell.execution_count is None
        lines = cell.source.splitlines()
        assert len([one for one in lines if not one.startswith(("from ", "import "))]) <= 15
        assert not re.search(r"['\"]/\w", cell.source), "an absolute path"
        for node in ast.walk(ast.parse(cell.source.replace("%matplotlib inline", ""))):
            assert not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)


@EACH
def test_a_result_follows_the_template_and_its_numbers_are_not_typed_in(path: Path) -> None:
    cells = read(path).cells
    text = "\n".join(cell.source for cell in cells)
    places = [text.find(f"\n{section}") for section in SECTIONS]
    assert all(place > 0 for place in places)
    assert places == sorted(places)
    assert not re.search(r"\bsupported\b|\bcontradicted\b|0\.\d\d", text)


@pytest.mark.notebook
@EACH
def test_the_published_records_give_an_answer_in_numbers(path: Path, show: Show) -> None:
    notebook = show(path)
    cells = code_cells(notebook)
    answers = [texts(cell) for cell in cells if cell.source.endswith(".answer")]
    answers += [texts(cell) for cell in cells if "statements.answer" in cell.source]
    assert answers
    for answer in answers:
        lines = [line for line in answer.splitlines() if line.startswith("- ")]
        assert 1 <= len(lines) <= 4
        assert all(re.search(r"\d", line) for line in lines)
    assert pictures(notebook) or path in (CLAIMS, RELATED), "tables"


@pytest.mark.notebook
@pytest.mark.parametrize(
    ("path", "figures", "words"),
    [
        (
            THROUGHPUT,
            1,
            ["Throughput by strategy, relative to ", "10.7", "19 runs: 18 completed, 1 failed"],
        ),
        (LOADERS, 0, ["No run here answers this question. It needs a training, its loader alone"]),
        (TIME, 2, ["all-reduce falls in", "compute"]),
        (CLAIMS, 0, ["not tested: needs 1024 GPUs (juwels_booster)", "0 are asked here"]),
        (SCALING, 1, ["ranks: E ", "deepspeed", "link_mbit"]),
        (ADVISE, 1, ["meets all limits", "limits: met", "violated"]),
    ],
    ids=lambda one: one.stem if isinstance(one, Path) else "",
)
def test_shows_the_runs_of_a_folder(path, figures, words, tree, laptop, show) -> None:  # noqa: F811
    laptop(strategy="ddp", gpus_per_node=2, status="failed", rows=[], repeat=5)
    assert_shows(show(path, results=str(tree.root)), figures, *words)


@pytest.mark.notebook
def test_wrong_limits_are_answered_in_words(show: Show) -> None:
    assert_shows(show(ADVISE, accuracy=0.75), 0, "accuracy=0.75", "percent")


@pytest.mark.notebook
def test_shows_the_memory_of_a_folder(tree, make_run, show) -> None:  # noqa: F811
    made(make_run, "ddp", 9.0, 1.5)
    made(make_run, "fsdp", 9.0, 0.25)
    notebook = show(MEMORY, results=str(tree.root))
    assert_shows(notebook, 1, "2 runs: 2 completed", "PyTorch-FSDP, 0.25 GiB at ", "more")


@pytest.mark.notebook
def test_shows_the_accuracies_of_a_folder(tree, make_run, show) -> None:  # noqa: F811
    for repeat, schedule in itertools.product((0, 1), ("step", "exponential")):
        fields = {"study": "tiny", "schedule": schedule, "repeat": repeat}
        make_run(**fields)
        make_run(accumulation=20, **fields)
    notebook = show(ACCURACY, results=str(tree.root))
    assert_shows(notebook, 1, "8 runs: 8 completed", "12.5", "O2", "SGD, exponential")


@pytest.mark.notebook
def test_shows_the_libraries_of_a_folder(tree, every_configuration, show) -> None:  # noqa: F811
    notebook = show(RELATED, results=str(tree.root))
    assert_shows(notebook, 0, "84 runs: 84 completed", "H01", "not tested: needs 256 GPUs", "O01")


@pytest.mark.notebook
@EACH
def test_works_without_any_run(path: Path, show: Show, tmp_path: Path) -> None:
    notebook = show(path, results=str(tmp_path))
    stated = {SCALING, TIME, SCHEDULES, ACCURACY, ADVISE}
    assert bool(pictures(notebook)) == (path in stated)
    assert path in {*stated, CLAIMS} or "No run here answers this question." in text_of(notebook)
