"""A question is a file: the example of docs/contributing/walkthrough.md is drawn as it stands."""

import pytest

from ddl_tools.analysis import question, redraw
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.records.paths import PROJECT, Tree
from tests.analysis.conftest import MakeRun

PAGE = PROJECT / "docs" / "contributing" / "walkthrough.md"


def test_the_figure_of_the_walkthrough_is_drawn(
    tree: Tree, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, question.Question] = {}
    monkeypatch.setattr(question, "REGISTERED", found)
    code = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    exec(compile(code, "data_wait.py", "exec"), {"__name__": "data_wait"})
    assert set(found) == {"data_wait"}
    monkeypatch.setitem(QUESTIONS, "data_wait", found["data_wait"])
    monkeypatch.setattr(redraw, "QUESTIONS", found)
    for loader in ("native", "turbo"):
        for repeat in (0, 1):
            make_run(loader=loader, repeat=repeat)
    redraw.redraw(tree, figures=tree.figures, studies=["laptop"])
    page = (tree.figures / "laptop" / "README.md").read_text()
    assert all(text in page for text in ("waits longest for data: ", "| native | ", "| turbo | "))
    assert (tree.figures / "laptop" / "data_wait.png").exists()


def test_all_files_are_found_in_the_order_of_the_notebooks() -> None:
    assert next(iter(QUESTIONS)) == "comparison"
    notebooks = [one.notebook for one in QUESTIONS.values()]
    assert notebooks == sorted(notebooks)
    assert all((PROJECT / "notebooks" / f"{name}.ipynb").exists() for name in notebooks)
