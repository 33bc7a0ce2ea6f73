"""A record that acts where it is shown: every output shows each of its texts as text."""

import copy
import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest
import yaml
from click.testing import CliRunner

from ddl_tools.analysis.figures.comparison import Comparison
from ddl_tools.analysis.redraw import redraw
from ddl_tools.analysis.tables import read_table, runs_table
from ddl_tools.cli import main
from ddl_tools.launch import report
from ddl_tools.launch.notebook import execute
from ddl_tools.launch.report import write_report
from ddl_tools.records.damage import examine
from ddl_tools.records.paths import NOTEBOOKS, RunFiles, Tree
from tests.analysis.hostile import (
    FIELDS,
    RAN,
    SCRIPT,
    STUDY,
    TEXTS,
    World,
    alive,
    formulas,
    make_world,
    rendered,
    texts_of,
    unseen,
)
from tests.mutations import put

pytestmark = [pytest.mark.slow]
NOTEBOOK = "11_throughput.ipynb"
OF_PAGES = "html head meta title style body nav main div pre h3 b i details summary"


MORE = [pytest.param(text, id=name, marks=pytest.mark.extended) for name, text in TEXTS.items()]


@pytest.fixture(scope="module", params=[pytest.param(SCRIPT, id="script"), *MORE[1:]])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("hostile"), request.param)


def test_most_fields_hold_the_text_and_its_runs_are_whole(world: World) -> None:
    names = {place[-1] for place in world.accepted}
    assert {"cpu", "accelerator", "os", "git_commit", "data_dir", "job_id", "torch"} <= names
    assert len(world.fields) > len(world.accepted) > 40
    assert not [run for run in world.tree.folders(STUDY) if examine(run).damages]


def word(text: str) -> str:
    """Return a word of a text, which is there however its signs are escaped."""
    return max(re.findall(r"[A-Za-z]+", text), key=len)


def said(*words: object) -> str:
    result = CliRunner().invoke(main, [str(one) for one in words], color=True)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.output


def test_commands_show_every_character(world: World, tmp_path: Path) -> None:
    results = ["--results", world.tree.root]
    shown = [
        said("study", command, name, *results)
        for command, name in (
            *(("verify", name) for name in (STUDY, FIELDS)),
            *((command, world.study) for command in ("status", "compare")),
        )
    ]
    shown.append(said("study", "run", world.study, "--dry-run", *results))
    shown.append(said("study", "plan", world.study, "--dry-run", *results))
    shown.append(said("figures", *results, "--to", tmp_path))
    for text in shown:
        assert unseen(text.replace("\x1b[31m\x1b[1m", "").replace("\x1b[0m", "")) == []
        assert "# A heading" not in text.splitlines()
    assert "damaged" in shown[1]
    assert STUDY in shown[-1]


def test_a_study_file_shows_every_character(world: World, tmp_path: Path) -> None:
    content = yaml.safe_load(world.study.read_text())
    path = tmp_path / "study.yaml"
    for place in texts_of(content):
        changed = copy.deepcopy(content)
        put(changed, place, world.text)
        path.write_text(yaml.safe_dump(changed))
        for command in (["status"], ["run", "--dry-run"]):
            text = said("study", *command, path, "--results", tmp_path)
            assert unseen(text) == [], place


@pytest.fixture(scope="module")
def drawn(world: World) -> Tree:
    with pytest.MonkeyPatch.context() as patch:
        # Its starts have one name, so no ratio has an interval.
        patch.setattr(Comparison, "enough", lambda self, points: True)
        done = redraw(world.tree, figures=world.tree.figures)
    assert not [line for line in done.damaged if "cannot be drawn" in line], done.damaged
    return world.tree


def test_pages_of_figures_hold_no_markup_of_it(world: World, drawn: Tree) -> None:
    pages = [*drawn.figures.rglob("*.md")]
    assert {page.parent.name for page in pages} >= {STUDY, "figures"}
    for page in pages:
        text = page.read_text()
        html = rendered(text.replace("<!-- written by", "").replace("by hand -->", ""))
        assert alive(html) == formulas(html) == unseen(text) == [], page


def test_tables_hold_no_formula_and_are_read_back(world: World, drawn: Tree) -> None:
    paths = [*drawn.tables.rglob("*.csv"), *drawn.figures.rglob("*.csv")]
    assert len(paths) > 10
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            cells = [cell for line in csv.reader(file) for cell in line]
        for cell in cells:
            if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
                float(cell)
    machines = read_table(drawn.tables / f"{STUDY}.csv")["accelerator"]
    assert machines.equals(runs_table(drawn, studies=[STUDY])["accelerator"])
    assert (machines.str[:5] == world.text[:5]).all()


def test_pictures_hold_it_as_text(world: World, drawn: Tree) -> None:
    pictures = [*drawn.figures.glob(f"{STUDY}/*.svg")]
    assert pictures
    words = ""
    for path in pictures:
        for element in ElementTree.parse(path).iter():
            name = str(element.tag).rpartition("}")[-1]
            assert name not in ("script", "foreignObject", "image", "a", "iframe", "animate")
            assert not [one for one in element.attrib if one.startswith("on")]
            words += element.text or ""
    assert unseen(words) == []
    assert word(world.text) in words


@pytest.fixture(scope="module")
def sent(world: World, drawn: Tree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report, of one notebook, and below it that notebook as it was executed."""
    root = tmp_path_factory.mktemp("sent")
    folder = root / "notebooks"
    folder.mkdir()
    shutil.copy(NOTEBOOKS / NOTEBOOK, folder)
    cells = [nbformat.v4.new_markdown_cell(f"# {world.text}")]
    cells.append(nbformat.v4.new_code_cell("", outputs=[
        nbformat.v4.new_output("display_data", data={kind: world.text})
        for kind in ("text/html", "text/markdown", "text/plain", "image/svg+xml")
    ]))  # fmt: skip
    run = RunFiles(drawn.folders(STUDY)[0])
    nbformat.write(nbformat.v4.new_notebook(cells=cells), run.notebook)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "NOTEBOOKS", folder)
        index = write_report(drawn, root / "report")
    run.notebook.unlink()
    return index


@pytest.mark.notebook
def test_the_report_holds_no_markup_of_it(world: World, sent: Path) -> None:
    pages = [*sent.parent.rglob("*.html")]
    assert len(pages) == 3
    for page in pages:
        text = page.read_text()
        found = alive(text, *OF_PAGES.split())
        if page.parent.name == STUDY:  # a notebook of a run may hold links
            found = [one for one in found if not one.startswith("<a> [('href', 'http://")]
        assert found == unseen(text) == [], page


def ran(browser: Any, page: Path) -> bool:
    """Open a page, and say whether a script of it ran."""
    browser.get(page.as_uri())
    return browser.execute_script(RAN) is not None


@pytest.mark.notebook
@pytest.mark.browser
def test_no_page_runs_it_in_a_browser(
    world: World, sent: Path, browser: Any, tmp_path: Path
) -> None:
    control = tmp_path / "control.html"
    control.write_text(f"<title>control</title><p>{SCRIPT}</p>")
    assert ran(browser, control)
    for page in sent.parent.rglob("*.html"):
        assert not ran(browser, page), page


def as_html(book: nbformat.NotebookNode, page: Path) -> Path:
    """Write a notebook as JupyterLab shows one that is trusted: nothing is taken out."""
    from nbconvert import HTMLExporter

    page.write_text(HTMLExporter(template_name="basic").from_notebook_node(book)[0])
    return page


@pytest.mark.notebook
@pytest.mark.browser
def test_no_notebook_runs_it_in_a_browser(
    world: World, drawn: Tree, browser: Any, tmp_path: Path
) -> None:
    executed = tmp_path / NOTEBOOK
    execute(NOTEBOOKS / NOTEBOOK, executed, {"results": str(drawn.root)})
    book = nbformat.read(executed, as_version=4)
    assert word(world.text) in json.dumps(book.cells)
    assert not ran(browser, as_html(book, tmp_path / "page.html"))
    links = "return [...document.querySelectorAll('[href^=\"javascript:\"], [onerror]')].length"
    assert browser.execute_script(links) == 0
    output = nbformat.v4.new_output("display_data", data={"text/markdown": SCRIPT})
    book.cells.append(nbformat.v4.new_code_cell("", outputs=[output]))
    assert ran(browser, as_html(book, tmp_path / "control.html"))
