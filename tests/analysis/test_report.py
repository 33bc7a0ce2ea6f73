"""The report is one folder that shows its pictures anywhere: no network, no server, a phone too."""

import re
import shutil
from base64 import b64encode
from pathlib import Path
from typing import Any

import nbformat
import pytest
from markupsafe import escape

from ddl_core.errors import LaunchError, RecordError
from ddl_tools.launch import report
from ddl_tools.launch.report import write_report
from ddl_tools.records.ledger import find_study, write_study
from ddl_tools.records.paths import NOTEBOOKS, RunFiles, Tree
from ddl_tools.records.stored import run_dirs
from ddl_tools.study import Study
from tests.analysis.conftest import CODE, MACHINE, SPEC, MakeRun, write_laptop, writer
from tests.analysis.hostile import EVIL, alive

pytestmark = pytest.mark.notebook

LINK = re.compile(r'<a [^>]*href="([^"#]+)"')
LOADED = re.compile(r'<(?:script|link|iframe)\b|(?:src|srcset)="(?!data:)|url\(|@import')


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, Path]:
    """A tree of records, and its report of an overview, a figure and the notebook of a run."""
    root = tmp_path_factory.mktemp("report")
    tree, folder = Tree(root / "results"), root / "notebooks"
    write_laptop(writer(tree))
    keep_a_notebook(run_dirs("laptop", tree)[0])
    answer = tree.figures / "laptop" / "comparison.png"
    answer.parent.mkdir(parents=True)
    answer.write_bytes(b"a picture")
    tree.tables.mkdir()
    (tree.tables / "laptop.csv").write_text("run_id\n")
    folder.mkdir()
    for name in ("01_run", "15_schedules", "11_throughput"):
        shutil.copy(NOTEBOOKS / f"{name}.ipynb", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "NOTEBOOKS", folder)
        return tree, write_report(tree, root / "sent" / "report")


def keep_a_notebook(run_dir: Path) -> None:
    """Give a run an executed notebook."""
    output = nbformat.v4.new_output("stream", text="rank 0 <begins>")
    cell = nbformat.v4.new_code_cell("print('rank')", outputs=[output])
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A run"), cell])
    nbformat.write(book, RunFiles(run_dir).notebook)


def test_a_report_is_whole_and_stands_alone(sent: tuple[Tree, Path]) -> None:
    tree, index = sent
    pages = sorted(str(one.relative_to(index.parent)) for one in index.parent.rglob("*.html"))
    text = index.read_text()
    study = find_study("laptop", tree)
    assert str(escape(study.question)) in text
    assert f"data:image/png;base64,{b64encode(b'a picture').decode()}" in text
    for fact in (MACHINE["cpu"], CODE["git_commit"][:8], "completed", str(tree.study("laptop"))):
        assert str(fact) in text
    book = f"notebooks/laptop/{run_dirs('laptop', tree)[0].name}.html"
    assert pages == ["11_throughput.html", "15_schedules.html", "index.html", book]
    for page in pages:
        text = (index.parent / page).read_text()
        assert not LOADED.search(text), page
        for link in LINK.findall(text):
            assert ((index.parent / page).parent / link).is_file(), (page, link)
    assert set(LINK.findall(index.read_text())) == {*pages, "tables/laptop.csv"} - {"index.html"}
    assert "rank 0 &lt;begins&gt;" in (index.parent / book).read_text()
    text = (index.parent / "11_throughput.html").read_text()
    assert "18 runs: 18 completed" in text
    assert 'src="data:image/png' in text
    assert "import load" not in text


def test_no_text_of_a_record_becomes_a_script(
    tree: Tree, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = {**MACHINE, "cpu": EVIL, "accelerator": EVIL}
    runs = [
        make_run(strategy=one, repeat=repeat, system=system)
        for one in ("single", "ddp")
        for repeat in range(3)
    ]
    axes = [{"strategy": ["single", "ddp"]}]
    write_study(Study(name="laptop", question=EVIL, base=SPEC, axes=axes), tree)
    cells = [nbformat.v4.new_markdown_cell(f"# A run {EVIL}"), nbformat.v4.new_raw_cell(EVIL)]
    cells += [
        nbformat.v4.new_code_cell("run()", outputs=[output])
        for output in (
            nbformat.v4.new_output("stream", text=EVIL),
            nbformat.v4.new_output("error", ename=EVIL, evalue=EVIL, traceback=[EVIL]),
            *(
                nbformat.v4.new_output("display_data", data={kind: EVIL}, metadata=about)
                for kind, about in (
                    ("text/html", {}),
                    ("text/html", {"text/html": {"isolated": True}}),
                    ("text/markdown", {}),
                    ("text/latex", {}),
                    ("text/plain", {}),
                    ("application/javascript", {}),
                    ("image/svg+xml", {}),
                    ("image/png", {"image/png": {"width": "1 onload=run()"}}),
                )
            ),
        )
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), RunFiles(runs[0]).notebook)
    folder = tmp_path / "notebooks"
    folder.mkdir()
    shutil.copy(NOTEBOOKS / "11_throughput.ipynb", folder)
    monkeypatch.setattr(report, "NOTEBOOKS", folder)
    index = write_report(tree, tmp_path / "sent")
    pages = sorted(index.parent.rglob("*.html"))
    assert len(pages) == 3
    ours = "html head meta title style body nav main div pre h3 b i details summary"
    for page in pages:
        text = page.read_text()
        assert alive(text, *ours.split()) == []
        assert "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline';" in text
    text = (index.parent / "11_throughput.html").read_text()
    assert 'src="data:image/png' in text
    assert "<h1" in text
    assert "<th>" in text
    assert "&lt;p&gt;" not in text
    assert "&lt;th&gt;" not in text


@pytest.mark.parametrize("content", ['{"cells": [], "metadata": {}, "nbformat": 4}', "[]"])
def test_a_notebook_of_a_run_that_is_none_is_one_sentence(
    content: str, tree: Tree, make_run: MakeRun, page: Path, tmp_path: Path
) -> None:
    runs = [make_run(strategy=one) for one in ("ddp", "horovod")]
    keep_a_notebook(runs[0])
    RunFiles(runs[1]).notebook.write_text(content)
    index = write_report(tree, tmp_path / "sent")
    for run in runs:
        assert f"{run.name}.html" in index.read_text()
        text = (index.parent / "notebooks" / "laptop" / f"{run.name}.html").read_text()
        assert ("cannot be shown" in text) <= (run == runs[1])


@pytest.fixture
def page(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only notebook of a report: a title, and a cell of parameters."""
    make_run()
    book = nbformat.read(NOTEBOOKS / "15_schedules.ipynb", as_version=4)
    cells = [one for one in book.cells if "parameters" in one.metadata.get("tags", [])]
    book.cells = [nbformat.v4.new_markdown_cell("# A page"), *cells]
    path = tmp_path / "notebooks" / "15_schedules.ipynb"
    path.parent.mkdir()
    nbformat.write(book, path)
    monkeypatch.setattr(report, "NOTEBOOKS", path.parent)
    return path


def test_a_failing_notebook_costs_no_older_report(tree: Tree, page: Path, tmp_path: Path) -> None:
    target = tmp_path / "report"
    write_report(tree, target)
    before = {one: one.read_bytes() for one in target.rglob("*") if one.is_file()}
    book = nbformat.read(page, as_version=4)
    book.cells.append(nbformat.v4.new_code_cell("print(1 / 0)"))
    nbformat.write(book, page)
    with pytest.raises(LaunchError, match=r"15_schedules\.ipynb failed: ZeroDivisionError"):
        write_report(tree, target)
    assert {one: one.read_bytes() for one in target.rglob("*") if one.is_file()} == before
    assert not list(tmp_path.glob(".report-*"))


def test_what_is_no_report_is_not_replaced(tree: Tree, make_run: MakeRun, tmp_path: Path) -> None:
    make_run()
    for names in (["letter.txt"], ["index.html", "data/results.csv"]):
        folder = tmp_path / names[0]
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("mine")
        with pytest.raises(RecordError, match="move that away"):
            write_report(tree, folder)
        assert all((folder / name).read_text() == "mine" for name in names)


def test_a_report_replaces_a_report_alone(tree: Tree, page: Path, tmp_path: Path) -> None:
    """Nothing that was put beside it."""
    target = tmp_path / "report"
    (target / "empty").mkdir(parents=True)
    index = write_report(tree, target)
    index.write_text("older")
    assert write_report(tree, target).read_text() != "older"
    (target / "tables").mkdir()
    own = target / "tables" / "mine.csv"
    own.write_text("mine")
    with pytest.raises(RecordError, match=r"tables/mine\.csv"):
        write_report(tree, target)
    assert own.read_text() == "mine"
    assert index.is_file()


def test_without_any_run_there_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"there are no runs in .*ddl study run laptop"):
        write_report(Tree(tmp_path), tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.mark.browser
def test_a_page_fits_a_phone_with_its_pictures(sent: tuple[Tree, Path], browser: Any) -> None:
    _, index = sent
    screen = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(index.as_uri())
    browser.find_element("css selector", 'a[href="11_throughput.html"]').click()
    shown = browser.execute_script(
        "return [...document.images].map(one => [one.naturalWidth, one.clientWidth])"
    )
    assert shown
    assert all(natural > 300 and width <= screen["width"] for natural, width in shown)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= screen["width"]
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
