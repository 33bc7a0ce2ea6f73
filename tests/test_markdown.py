"""Markdown that programs write: tables, and blocks of a page."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import report
from ddl_core.errors import DataError
from ddl_tools import markdown
from ddl_tools.analysis.pages import blocks
from ddl_tools.cli import reference
from ddl_tools.records.paths import committed
from tests.analysis.hostile import EVIL, alive, formulas, rendered, shown

PAGE = (
    "before\n<!-- code: one -->\nold\nlines\n<!-- end -->\n<!-- code: two -->\n<!-- end -->\nafter"
)


WRITERS = [
    pytest.param(lambda: reference.BLOCKS, "make reference", id="reference"),
    pytest.param(lambda: report.BLOCKS, "python -m benchmarks.report", id="benchmarks"),
    pytest.param(lambda: blocks(committed()), "ddl figures", id="figures", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("writer", "command"), WRITERS)
def test_the_pages_of_the_project_are_up_to_date(
    writer: Callable[[], markdown.Blocks], command: str
) -> None:
    found = writer()
    for page in found.pages:
        text = page.read_text(encoding="utf-8")
        assert found.written(text) == text, f"{page} is old: run {command}"


def test_only_what_is_between_the_marks_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for _ in range(2):
        markdown.Blocks("code", [page], str.upper).write()
        new = PAGE.replace("old\nlines", "ONE").replace("two -->", "two -->\nTWO")
        assert page.read_text() == new


@pytest.mark.parametrize("text", ["", "<!-- end -->", PAGE.replace("<!-- end -->", "", 1), None])
def test_a_page_without_both_marks_stays_and_is_named(tmp_path: Path, text: str | None) -> None:
    page = tmp_path / "page.md"
    if text is not None:
        page.write_text(text)
    with pytest.raises(DataError, match=r"page\.md: .*git checkout"):
        markdown.Blocks("code", [page], str.upper).write()
    assert text is None or page.read_text() == text


def test_a_cell_may_hold_a_bar() -> None:
    assert markdown.table(["a"], [["b|c"]]) == "| a |\n| --- |\n| b\\|c |"


@pytest.mark.parametrize(
    "text",
    [
        EVIL,
        "AT&T &lt; <b>",
        "_a_ __b__ *c* ~~d~~ `e`",
        "[x](y) [0.8](y) [x]: y",
        r"a\*b \begin{x} \$1 $a$",
        "# heading",
        "- item",
        "+ item",
        "> quote",
        "http://evil.example/x and www.evil.example",
    ],
)
@pytest.mark.parametrize("page", ["{}", "# {}", "- {}", "*{}*", "[{}](page.md)"])
def test_a_text_is_shown_and_is_no_markup(text: str, page: str) -> None:
    line = page.format(markdown.escape(text))
    html = rendered(line)
    assert alive(html) == formulas(html) == []
    assert "p://" not in line
    assert "www." not in line
    assert shown(html).strip() == " ".join(text.split())


@pytest.mark.parametrize(
    "text",
    [
        "1.1k [0.83, 1.91k] (slower)",
        "2.60e-05 [2.33e-05, 2.89e-05] s",
        "one_gpu",
        "E >0.8, <0.9",
        "Xeon(R) CPU @ 2.50GHz",
        "+9 points",
        "-5",
        "a | b",
    ],
)
def test_a_text_without_markup_stays_as_it_is(text: str) -> None:
    assert markdown.escape(text) == text


def test_code_and_links_hold_any_name() -> None:
    name = "a`b](javascript:run()) <b>"
    assert shown(rendered(markdown.code(name))).strip() == name.replace("`", "'")
    html = rendered(markdown.link("page", f"{name}/README.md"))
    assert alive(html) == []
    assert html.startswith('<p><a href="a%60b')
