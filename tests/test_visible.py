"""Characters of others that act on a terminal or a page are shown, and do not act."""

import unicodedata

import pytest

from ddl_tools.visible import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b2J", r"\x9b2J"),
        ("over\rwritten\x08", r"over\rwritten\x08"),
        ("\x7f\x00", r"\x7f\x00"),
        ("\u202egnp.exe\u2069", r"\u202egnp.exe\u2069"),
        ("\u061c\u200e\u200f", r"\u061c\u200e\u200f"),
        ("a\u200bb\ufeff\u00ad", r"a\u200bb\ufeff\xad"),
        ("\u3164\u115f\ufe0f", r"\u3164\u115f\ufe0f"),
        ("\U000e0041", r"\U000e0041"),
        ("\u2028\udcff", r"\u2028\udcff"),
    ],
)
def test_what_is_not_seen_is_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    "text", ["a\n\tb", "Größe × 2 – ’x", "模型 模型", "عربي", "😀", "10\N{NO-BREAK SPACE}000"]
)
def test_what_is_seen_stays(text: str) -> None:
    assert visible(text) == text


def test_no_control_and_no_format_character_is_left() -> None:
    every = "".join(map(chr, range(0x110000)))
    left = {unicodedata.category(one) for one in visible(every) if one not in "\n\t"}
    assert not left & {"Cc", "Cf", "Cs", "Zl", "Zp"}
