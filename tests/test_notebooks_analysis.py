"""The notebooks that show results: their form, and that they work from top to bottom."""

import ast
import itertools
import re
from pathlib import Path

import nbformat
import pytest

from ddl_tools.launch.notebook import execute
from ddl_tools.records.paths import NOTEBOOKS, Tree
from tests.analysis.conftest import MakeRun, laptop, make_run, tree  # noqa: F401
from tests.analysis.figures.test_libraries import every_configuration  # noqa: F401
from tests.analysis.figures.test_memory_per_rank import made

# By the number that a name begins with: 0 runs things, 1 and 2 show results.
NUMBERED = {int(path.stem[:2]): path for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))}
SHOWING = [path for number, path in NUMBERED.items() if number >= 10]
MEASURED, THROUGHPUT, EFFICIENCY, LOADERS, TIME = (NUMBERED[one] for one in range(10, 15))
ACCURACY, CURVES, CLAIMS, SCALING, MEMORY, MALIK, MAHON, ADVISE = (
    NUMBERED[one] for one in range(16, 24)
)
EACH = pytest.mark.parametrize("path", SHOWING, ids=lambda path: path.stem)


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    notebook = nbformat.read(path, as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(path: Path) -> str:
    """Return all text that the cells of an executed notebook show."""
    return "\n".join(
        output.get("text") or output.data.get("text/plain", "")
        for cell in code_cells(path)
        for output in cell.outputs
    )


def pictures(path: Path) -> int:
    return sum("image/png" in o.get("data", {}) for cell in code_cells(path) for o in cell.outputs)


@pytest.mark.parametrize("path", NUMBERED.values(), ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.splitlines()[0].endswith("?")
    cells = code_cells(path)
    assert len(cells) <= 15
    assert [cell.metadata.get("tags") for cell in cells].count(["parameters"]) == 1
    for cell in cells:
        assert cell.outputs == []
        assert cell.execution_count is None
        assert len(cell.source.splitlines()) <= 15
        assert not re.search(r"['\"]/\w", cell.source), "an absolute path"
        for node in ast.walk(ast.parse(cell.source.replace("%matplotlib inline", ""))):
            assert not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)


@EACH
def test_verdicts_and_numbers_are_not_typed_in(path: Path) -> None:
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    assert not re.search(r"\bsupported\b|\bcontradicted\b|0\.\d\d", text)


@pytest.mark.notebook
@pytest.mark.parametrize(
    ("path", "figures", "words"),
    [
        (THROUGHPUT, 2, ["Killed", "10.67"]),
        (MEASURED, 0, ["git_dirty"]),
        (EFFICIENCY, 1, ["base_world_size"]),
        (LOADERS, 2, ["not measured: loader alone", "O09"]),
        (TIME, 3, ["82.61", "C6;C7", "without the suspects", "total"]),
        (CLAIMS, 0, ["planned in studies/juwels_booster.yaml", "no such GPU was measured here"]),
        (SCALING, 1, ["ZeRO stage 1", "deepspeed", "link_mbit"]),
        (ADVISE, 1, ["meets all limits", "E09", "violated"]),
    ],
    ids=lambda one: one.stem if isinstance(one, Path) else "",
)
def test_shows_the_runs_of_a_folder(
    path: Path,
    figures: int,
    words: list[str],
    tree: Tree,  # noqa: F811
    laptop: MakeRun,  # noqa: F811
    tmp_path: Path,
) -> None:
    laptop(strategy="ddp", gpus_per_node=2, status="failed", rows=[], repeat=5)
    target = tmp_path / "shown.ipynb"
    execute(path, target, {"results": str(tree.root)})
    assert pictures(target) == figures
    text = shown(target)
    for word in ("19 runs: 18 completed, 1 failed", *words):
        assert word in text


@pytest.mark.notebook
def test_shows_the_memory_of_a_folder(
    tree: Tree,  # noqa: F811
    make_run: MakeRun,  # noqa: F811
    tmp_path: Path,
) -> None:
    made(make_run, "ddp", 9.0, 1.5)
    made(make_run, "fsdp", 9.0, 0.25)
    target = tmp_path / "shown.ipynb"
    execute(MEMORY, target, {"results": str(tree.root)})
    assert pictures(target) == 1
    for word in ("2 runs: 2 completed", "PyTorch-FSDP", "0.25", "more"):
        assert word in shown(target)


@pytest.mark.notebook
@pytest.mark.parametrize("path", [ACCURACY, CURVES], ids=lambda path: path.stem)
def test_shows_the_accuracies_of_a_folder(
    path: Path,
    tree: Tree,  # noqa: F811
    make_run: MakeRun,  # noqa: F811
    tmp_path: Path,
) -> None:
    for repeat, schedule in itertools.product((0, 1), ("step", "exponential")):
        fields = {"study": "tiny", "schedule": schedule, "repeat": repeat}
        make_run(**fields)
        make_run(accumulation=20, **fields)
    target = tmp_path / "shown.ipynb"
    execute(path, target, {"results": str(tree.root)})
    assert pictures(target) == (2 if path == ACCURACY else 1)
    text = shown(target)
    for word in ("8 runs: 8 completed", "0.125", "O2", "SGD, exponential"):
        assert word in text


@pytest.mark.notebook
@pytest.mark.parametrize(
    ("path", "figures", "words"),
    [
        (MALIK, 3, ["H01", "Horovod (native, folders) 1.80 [", "not testable here"]),
        (MAHON, 4, ["O01", "E of PyTorch-DDP / MXNet, KVStore 1.00 [", "cannot say"]),
    ],
    ids=["malik", "mahon"],
)
def test_judges_the_libraries_of_a_folder(
    path: Path,
    figures: int,
    words: list[str],
    tree: Tree,  # noqa: F811
    every_configuration: None,  # noqa: F811
    tmp_path: Path,
) -> None:
    target = tmp_path / "shown.ipynb"
    execute(path, target, {"results": str(tree.root), "studies": ["libraries"]})
    assert pictures(target) == figures
    text = shown(target)
    for word in ("84 runs: 84 completed", *words):
        assert word in text


@pytest.mark.notebook
@EACH
def test_works_without_any_run(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "shown.ipynb"
    execute(path, target, {"results": str(tmp_path / "empty")})
    assert "0 runs" in shown(target)
    assert pictures(target) or path in (MEASURED, CLAIMS)  # all tables
