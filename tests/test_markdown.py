"""Markdown that programs write: tables, and blocks of a page."""

import pytest

from ddl_core.errors import DataError
from ddl_tools import markdown
from tests.analysis.hostile import EVIL, alive, formulas, rendered, shown

PAGE = (
    "before\n<!-- code: one -->\nold\nlines\n<!-- end -->\n<!-- code: two -->\n<!-- end -->\nafter"
)


def test_only_what_is_between_the_marks_is_written() -> None:
    text = PAGE
    for _ in range(2):
        text = markdown.written(text, "code", str.upper)
        assert text == PAGE.replace("old\nlines", "ONE").replace("two -->", "two -->\nTWO")


@pytest.mark.parametrize("text", ["", "<!-- end -->", PAGE.replace("<!-- end -->", "", 1)])
def test_a_block_needs_both_marks(text: str) -> None:
    with pytest.raises(DataError, match="end"):
        markdown.written(text, "code", str.upper)


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
    ],
)
@pytest.mark.parametrize("page", ["{}", "# {}", "- {}", "*{}*", "[{}](page.md)"])
def test_a_text_is_shown_and_is_no_markup(text: str, page: str) -> None:
    html = rendered(page.format(markdown.escape(text)))
    assert alive(html) == formulas(html) == []
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
