"""The page of all results: every published figure, and nothing that is not there."""

import re
from pathlib import Path

import pytest

from ddl_tools.analysis import pages
from ddl_tools.analysis.redraw import redraw
from ddl_tools.records.paths import FIGURES, Tree, committed
from tests.analysis.conftest import MakeRun
from tests.analysis.emulated import emulate

LINK = re.compile(r"\]\(([^)#]+)\)")


def test_it_is_what_the_committed_records_give() -> None:
    expected = pages.figures_page(committed(), FIGURES)
    assert (FIGURES / pages.FIGURES_PAGE).read_text() == expected, "run: ddl figures"


def test_all_published_figures_are_on_it_and_all_links_lead_somewhere() -> None:
    links = set(LINK.findall((FIGURES / pages.FIGURES_PAGE).read_text()))
    pictures = {f"{path.parent.name}/{path.name}" for path in FIGURES.rglob("*/*.png")}
    assert pictures <= links
    assert [link for link in links if not (FIGURES / link).exists()] == []


@pytest.mark.slow
def test_a_study_is_told_with_its_machine_and_its_code(tree: Tree, laptop: MakeRun) -> None:
    redraw(tree, figures=tree.figures)
    page = pages.figures_page(tree, tree.figures)
    assert "18 completed" in page
    assert "on Example(R) CPU @ 2.00GHz (2 cores); code `01234567`." in page
    assert "![comparison](laptop/comparison.png)" in page
    assert Path(tree.figures / "laptop" / "comparison.png").exists()


@pytest.mark.slow
def test_what_is_emulated_is_said(tree: Tree, make_run: MakeRun) -> None:
    for nodes in (1, 2):
        emulate(make_run, nodes=nodes)
    emulate(make_run, nodes=2, repeat=1, unfaithful=["others took the cores"])
    redraw(tree, figures=tree.figures)
    page = " ".join(pages.figures_page(tree, tree.figures).split())
    how = "([how](../docs/explanation/emulation.md))"
    assert f"Emulated, not measured on a cluster {how}; 1 runs were" in page
