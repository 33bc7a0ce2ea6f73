"""Prose is plain: short sentences, the field's words, short pages.

`docs/contributing/style.md` has the rules. Checked are the README, CONTRIBUTING, the pages of docs/
(among them the help texts of `ddl`, as docs/reference/cli.md) and of results with their captions.
"""

import re
from pathlib import Path

import pytest

from ddl_tools.records.paths import PROJECT

PAGES = sorted(
    [PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    + [*PROJECT.glob("docs/**/*.md"), *PROJECT.glob("figures/**/*.md")]
)
MOST_BYTES, MOST_LINES, CAPTION_WORDS = 12_000, 180, 50
MOST_WORDS = 25
# Pages that show the words in order to replace them.
SHOWN = {"docs/contributing/style.md"}
WORDS = re.compile(
    r"\b(?:(?-i:arms?)|told|surely|twins?|planted|gates?|peers?|referees?|nobody|unfaithful"
    r"|lab book|cannot say|cluster in a box|take turns|in turns?|but for|come of it|no matter of"
    r"|at hand|so many|is said|what is (?:asked|told|said)|on its own terms|seen here)\b",
    re.I,
)
_TEXT = re.compile(r"<text[^>]*>([^<]*)</text>")
_CAPTION = re.compile(r"^\*(.*)\*$", re.M)
_CODE = re.compile(r"^```.*?^```|^ {4}\S.*?$|<!--.*?-->", re.M | re.S)
_INLINE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|\"[^\"\n]*\"")


def name(page: Path) -> str:
    return page.relative_to(PROJECT).as_posix()


def prose(text: str) -> str:
    """Return a page without code, links and quotations."""
    return _INLINE.sub(" x ", _CODE.sub("\n\n", text))


def sentences(text: str) -> list[str]:
    """Return the sentences of paragraphs, items and cells of tables."""
    parts = re.split(r"\n\s*\n|^\s*(?:[-*>]|\d+\.)\s|\||^#+ ", prose(text), flags=re.M)
    return [one for part in parts for one in re.split(r"[.:;?!](?=\s|$)", " ".join(part.split()))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_is_plain(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) <= MOST_BYTES
    assert not [one for one in sentences(text) if len(one.split()) > MOST_WORDS]
    if name(page) not in SHOWN:
        assert not WORDS.findall(prose(text))
        assert name(page).startswith("figures/") or not re.findall(r"^#+ What\b.*", text, re.M)


@pytest.mark.parametrize("page", sorted(PROJECT.glob("figures/*/*.md")), ids=name)
def test_captions_are_short(page: Path) -> None:
    captions = _CAPTION.findall(page.read_text(encoding="utf-8"))
    assert len(captions) == len([*page.parent.glob("*.svg")])
    assert all(0 < len(caption.split()) <= CAPTION_WORDS for caption in captions)


@pytest.mark.parametrize("figure", sorted(PROJECT.glob("figures/*/*.svg")), ids=name)
def test_the_words_in_a_figure_are_plain(figure: Path) -> None:
    text = figure.read_text(encoding="utf-8")
    assert not WORDS.findall(" ".join(_TEXT.findall(text)))


def test_the_readme_has_few_lines() -> None:
    assert len((PROJECT / "README.md").read_text("utf-8").splitlines()) <= MOST_LINES
