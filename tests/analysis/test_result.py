"""What a notebook shows of a folder of results."""

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest

from ddl_core.errors import RecordError
from ddl_tools.analysis.result import load
from ddl_tools.records.paths import NOTEBOOKS
from tests.analysis.hostile import EVIL, alive, formulas, rendered, shown


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"there is no folder of results .*nowhere"):
        load("efficiency", str(tmp_path / "nowhere"))


def shown_as_markdown(names: dict[str, Any]) -> list[str]:
    """Execute the cells of the notebook of a study that end with Markdown; return that."""
    book = nbformat.read(NOTEBOOKS / "02_study.ipynb", as_version=4)
    imports, *cells = [cell.source for cell in book.cells if cell.cell_type == "code"]
    space: dict[str, Any] = {}
    exec(imports, space)
    space |= names
    found = []
    for tree in map(ast.parse, cells):
        *body, last = tree.body
        if ast.unparse(last).startswith("Markdown("):
            assert isinstance(last, ast.Expr)
            exec(compile(ast.Module(body, []), "cell", "exec"), space)
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), space)
            found.append(value.data)
    return found


def test_the_notebook_of_a_study_shows_names_as_text(tmp_path: Path) -> None:
    folder = tmp_path / "x](javascript:run()) `<img src=y onerror=run()> $a$"
    names = {
        "study": "laptop",
        "find_study": lambda name: SimpleNamespace(question=EVIL),
        "results": lambda: None,
        "drawn": SimpleNamespace(files=[folder / "comparison.svg"]),
    }
    question, links = map(rendered, shown_as_markdown(names))
    for html in (question, links):
        assert alive(html) == formulas(html) == []
    assert shown(question).strip() == " ".join(EVIL.split())
    assert f"{folder.name}/comparison.svg" in shown(links)
