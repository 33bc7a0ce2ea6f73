"""Generated pages: what the committed records give, every published figure, links that lead on."""

import re
from pathlib import Path

import pytest

from ddl_core.errors import DataError
from ddl_tools.analysis import claims, pages
from ddl_tools.analysis.paper import AACH, read_paper
from ddl_tools.analysis.redraw import redraw
from ddl_tools.analysis.tables import empty_table
from ddl_tools.records.paths import FIGURES, Tree, committed
from tests.analysis.conftest import MakeRun
from tests.analysis.drawn import draw_only
from tests.analysis.emulated import emulate

BEGIN = "<!-- statements: written by `ddl figures` from data/, not by hand -->"
END = "<!-- end of statements -->"
LINK = re.compile(r"\]\(([^)#]+)\)")


@pytest.mark.slow
def test_blocks_are_what_the_committed_records_give() -> None:
    texts = pages.texts(committed())
    assert texts.keys() == pages.PAGES.keys()
    for name, expected in texts.items():
        assert pages.shown(pages.PAGES[name], name) == expected, "run: ddl figures"


def test_the_page_of_figures_is_what_the_committed_records_give_and_shows_all() -> None:
    page = (FIGURES / pages.FIGURES_PAGE).read_text()
    assert page == pages.figures_page(committed(), FIGURES), "run: ddl figures"
    links = set(LINK.findall(page))
    assert {f"{path.parent.name}/{path.name}" for path in FIGURES.rglob("*/*.png")} <= links
    assert [link for link in links if not (FIGURES / link).exists()] == []


def test_the_table_of_results_answers_each_question_with_a_number() -> None:
    table = pages.shown(pages.PAGES["results"], "results")
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 8
    for _, result, _, details in rows:
        assert re.search(r"\d", result)
        assert "](" in details


def test_without_records_only_statements_are_in_the_table(tmp_path: Path) -> None:
    text = pages.texts(Tree(tmp_path))["results"]
    assert text.startswith("No run is published.")
    assert "Does the paper hold?" in text
    assert "Can a formula predict" not in text
    assert "DDP, Horovod" not in text


def test_there_is_a_line_for_each_statement() -> None:
    stated = read_paper().claims
    judged = claims.judged(empty_table(), stated[stated["paper"] == AACH])
    text = pages.statements(judged)
    for name in judged["statement"]:
        assert f"\n| {name} | " in text
    assert text.startswith("63 statements of the paper: 0 supported, 0 contradicted, 63 undecided.")
    assert "\n| throughput | 0 | 0 | 5 | 0 |\n" in text


def test_only_what_is_between_the_markers_is_written(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    for text in ("new", "newer\n\nlines"):
        pages.update(path, "statements", text)
        assert pages.shown(path, "statements") == text
        assert path.read_text() == f"before\n\n{BEGIN}\n{text}\n{END}\n\nafter\n"


@pytest.mark.parametrize("text", ["", BEGIN, END + BEGIN, None])
def test_without_markers_nothing_is_written(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "README.md"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=r"README\.md"):
        pages.update(path, "statements", "new")
    assert text is None or path.read_text() == text


def test_a_study_stands_with_its_machine_code_and_figures(
    tree: Tree, laptop: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch, "comparison")
    for nodes in (1, 2):
        emulate(laptop, nodes=nodes)
    emulate(laptop, nodes=2, repeat=1, unfaithful=["others took the cores"])
    redraw(tree, figures=tree.figures)
    page = " ".join(pages.figures_page(tree, tree.figures).split())
    assert "18 completed" in page
    assert "on Example(R) CPU @ 2.00GHz (2 cores); code `01234567`." in page
    assert "![comparison](laptop/comparison.png)" in page
    assert (tree.figures / "laptop" / "comparison.png").exists()
    how = "([how](../docs/explanation/emulation.md))"
    assert f"Emulated, not measured on a cluster {how}; 1 runs were unfaithful" in page
