"""A report that can be sent: the notebooks that show results, executed, as a folder of plain HTML.

Pictures are inside the pages, which load nothing from elsewhere and need no JavaScript. Records may
be somebody else's: no page runs a script that a record or its notebook holds.
"""

import base64
import html
import logging
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tqdm import tqdm

from ddl_core.errors import RecordError
from ddl_core.files import cannot_write, is_there, or_elsewhere, read_plain, refuse_links
from ddl_tools import markdown
from ddl_tools.launch.notebook import execute, without_iri_grammar
from ddl_tools.records.ledger import find_study, listing_fault, study_folders
from ddl_tools.records.paths import NOTEBOOKS, RunFiles, Tree, committed, portable
from ddl_tools.records.run import RunRecord, read_record
from ddl_tools.records.storage import MOST_LINES, MOST_RECORD, unexpected

log = logging.getLogger(__name__)

SHOWING = "[1-9][0-9]_*.ipynb"  # those from 0x run something
INDEX = "index.html"
MARKER = ".ddl-report"  # names the files of a report, one a line: nothing else is removed
# Of these, the first that is drawn answers the question of a study.
FIGURES = ("comparison.png", "memory_against_throughput.png")
TEMPLATE = Path(__file__).with_name("report.html.j2")
# What notebooks become; the rest of HTML is shown as text. Addresses are links or in the page.
_TAGS = {
    *("h1", "h2", "h3", "h4", "h5", "h6", "p", "div", "blockquote", "pre", "br", "hr"),
    *("ul", "ol", "li", "dl", "dt", "dd", "table", "thead", "tbody", "tfoot", "tr", "th", "td"),
    *("a", "img", "span", "code", "em", "strong", "i", "b", "u", "s", "del", "sub", "sup", "abbr"),
}
_ATTRIBUTES = {
    "a": ["title"],
    "img": ["alt", "width", "height"],
    "td": ["colspan", "rowspan"],
    "th": ["colspan", "rowspan"],
}
_ADDRESSES = {
    ("a", "href"): re.compile(r"(https?://|mailto:|[\w./%-]*(#|$))"),
    ("img", "src"): re.compile(r"data:image/(png|jpeg|svg\+xml);base64,"),
}


class Page(NamedTuple):
    """A link of the index."""

    title: str
    path: str  # from the report's folder


class StudyPage(NamedTuple):
    """A study on the index."""

    name: str
    question: str
    facts: list[str]
    figure: str  # as an address with its content; empty where none is drawn
    table: Page | None = None
    notebooks: Sequence[Page] = ()


def write_report(tree: Tree, folder: Path) -> Path:
    """Execute the notebooks on the records of `tree`; return the index of their pages in `folder`.

    An older report there is replaced once the new one is whole. A folder with any other file in it
    is refused.
    """
    if not tree.studies():
        raise RecordError(
            f"there are no runs in {tree.runs}; name a folder of results that holds runs/, or "
            "measure something first: ddl study run laptop"
        )
    try:
        require_report(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=".report-") as temporary:
            made = Path(temporary) / folder.name
            made.mkdir()
            _write_pages(tree, made)
            written = sorted(str(one.relative_to(made)) for one in _files(made))
            (made / MARKER).write_text("\n".join([*written, ""]), encoding="utf-8")
            require_report(folder)  # writing took minutes
            if folder.exists():
                shutil.rmtree(folder)
            made.rename(folder)
    except OSError as error:
        raise cannot_write(folder, error) from None
    return folder / INDEX


def require_report(folder: Path) -> None:
    """Refuse a link, and a folder that holds a file which no report wrote."""
    try:
        refuse_links(folder)
    except OSError as error:
        raise cannot_write(folder, error) from None
    if not folder.exists():
        return
    marker = folder / MARKER
    own = read_plain(marker, MOST_RECORD).decode().splitlines() if marker.is_file() else []
    known = {marker, *(folder / name for name in own)}
    if foreign := sorted(_files(folder) - known):
        raise RecordError(
            f"{folder} holds {foreign[0].relative_to(folder)}, which no `ddl report` wrote; a "
            f"report replaces only a report: {or_elsewhere('move that away')}"
        )


def _files(folder: Path) -> set[Path]:
    """Return all that is in a folder and below, but folders."""
    return {one for one in folder.rglob("*") if one.is_symlink() or not one.is_dir()}


def _write_pages(tree: Tree, folder: Path) -> None:
    own = {} if tree.root == committed().root else {"results": str(tree.root)}
    pages = []
    notebooks = sorted(NOTEBOOKS.glob(SHOWING))
    for notebook in tqdm(notebooks, desc="report", unit="notebook", disable=None):
        executed = folder / notebook.name
        execute(notebook, executed, own)
        pages.append(_write_page(executed, folder / f"{notebook.stem}.html", folder))
        executed.unlink()
    studies = [_of_study(tree, study, folder) for study in tree.studies()]
    _fill(folder / INDEX, title="", up="", body="", pages=pages, studies=studies)


def _of_study(tree: Tree, study: str, folder: Path) -> StudyPage:
    """Copy the table of a study and write its executed notebooks.

    Of a study whose runs cannot be listed, the index says why.
    """
    if fault := listing_fault(study, tree):
        log.warning("left out: %s", fault)
        return StudyPage(study, "", [fault], "")
    table = tree.tables / f"{study}.csv"
    if table.is_file():
        (folder / "tables").mkdir(exist_ok=True)
        content = read_plain(table, MOST_LINES)
        (folder / "tables" / table.name).write_bytes(content)
    pages = []
    for run in map(RunFiles, tree.folders(study)):
        if is_there(run.notebook):
            target = folder / "notebooks" / study / f"{run.directory.name}.html"
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                page = _write_page(run.notebook, target, folder, code=True)
            except Exception as error:  # of a notebook that is none
                text = f"The notebook of this run cannot be shown: {unexpected(error)}"
                page = Page("", str(target.relative_to(folder)))
                _fill(
                    target,
                    title=run.directory.name,
                    up="../../",
                    body=html.escape(text),
                    pages=[],
                    studies=[],
                )
            pages.append(page._replace(title=run.directory.name))
    link = Page(table.name, f"tables/{table.name}") if table.is_file() else None
    return _summary(tree, study)._replace(table=link, notebooks=pages)


def _summary(tree: Tree, study: str) -> StudyPage:
    planned = find_study(study, tree)
    drawn = [path for name in FIGURES if (path := tree.figures / study / name).is_file()]
    content = base64.b64encode(read_plain(drawn[0], MOST_RECORD)).decode() if drawn else ""
    return StudyPage(
        name=study,
        question=planned.question if planned else "",
        facts=_facts(study, tree),
        figure=f"data:image/png;base64,{content}" if content else "",
    )


def write_study_page(tree: Tree, study: str, answer: list[str], target: Path) -> None:
    """Write one page that can be sent: the lines of an answer, then figure and facts of a study."""
    found = _summary(tree, study)
    try:
        _fill(target, title="", up="", body="", answer=answer, pages=[], studies=[found])
    except OSError as error:
        raise cannot_write(target, error) from None


def _facts(study: str, tree: Tree) -> list[str]:
    """Return how many runs there are, when and where they were made, and by which commit."""
    records: list[RunRecord] = []
    for folder in study_folders(study, tree):
        with suppress(RecordError):  # the pages name what cannot be read
            records.append(read_record(folder))
    by_state = Counter(one.status for one in records)
    days = sorted(one.started_utc[:10] for record in records for one in record.attempts)
    systems = [record.system or {} for record in records if record.system]
    machines = {f"{one.get('accelerator') or one.get('cpu')}" for one in systems}
    commits = {
        f"{(one.provenance or {}).get('git_commit')}"[:8] for one in records if one.provenance
    }
    facts = {
        "runs": ", ".join(f"{number} {state}" for state, number in sorted(by_state.items())),
        "measured": " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "",
        "machine": ", ".join(sorted(machines)),
        "commit": ", ".join(sorted(commits)),
        "records": portable(tree.study(study)),
    }
    return [f"{name}: {text}" for name, text in facts.items() if text]


def _write_page(notebook: Path, target: Path, folder: Path, code: bool = False) -> Page:
    """Write an executed notebook as HTML, by default without its code."""
    with without_iri_grammar():
        import nbformat
        from nbconvert import HTMLExporter

    content = nbformat.reads(read_plain(notebook, MOST_LINES).decode(), as_version=4)
    exporter = HTMLExporter(
        template_name="basic",
        exclude_input=not code,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        sanitize_html=True,  # leaves out scripts of outputs; its own filter spoils headings
        filters={"clean_html": lambda html: html},
    )
    body = _sanitized(exporter.from_notebook_node(content)[0])
    title = content.cells[0].source.partition("\n")[0].lstrip("# ") if content.cells else ""
    path = target.relative_to(folder)
    _fill(target, title=title, up="../" * (len(path.parts) - 1), body=body, pages=[], studies=[])
    return Page(title, str(path))


def _sanitized(body: str) -> str:
    """Return HTML in which all that could run or load something is shown as text."""
    import bleach  # type: ignore[import-untyped]

    body = re.sub(r"<style\b.*?</style>", "", body, flags=re.S)  # of tables; it would be shown
    schemes = ["http", "https", "mailto", "data"]
    return str(bleach.clean(body, tags=_TAGS, attributes=_is_allowed, protocols=schemes))


def _is_allowed(tag: str, name: str, value: str) -> bool:
    if address := _ADDRESSES.get((tag, name)):
        return bool(address.match(value))
    return name in ("class", "id", *_ATTRIBUTES.get(tag, ()))


def _fill(target: Path, **values: Any) -> None:
    text = markdown.web(TEMPLATE, index=INDEX, **{"answer": []} | values)
    target.write_text(text, encoding="utf-8")
