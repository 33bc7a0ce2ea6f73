"""Markdown that programs write: tables, and blocks of a page."""

import pytest

from ddl_core.errors import DataError
from ddl_tools import markdown

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
