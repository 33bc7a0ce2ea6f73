"""Text that programs write: Markdown of foreign texts, tables, and blocks of a page."""

import re
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote

from ddl_core.errors import DataError

# Within an element of its own, neither GitHub nor JupyterLab takes a sign for mathematics.
_SIGNS = {"<": "&lt;", ">": "&gt;", **{sign: f"<span>&#{ord(sign)};</span>" for sign in "\\$"}}
_INTERVAL = r"\[[-+\d., k]+\](?![(\[:])"  # numbers in brackets are no link
_MARKUP = r"[\\$*`~\[\]]|[<>](?!\d)|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])|^[#+-](?=\W|$)"


def escape(text: object) -> str:
    """Return `text` as one line of Markdown that shows it and holds no markup.

    Bars are left to `table`.
    """
    return re.sub(
        f"({_INTERVAL})|{_MARKUP}",
        lambda found: found[1] or _SIGNS.get(found[0], f"\\{found[0]}"),
        " ".join(str(text).split()),
    )


def code(text: object) -> str:
    """Return a text as code within a line of Markdown; it cannot hold backticks."""
    return f"`{' '.join(str(text).split()).replace('`', chr(39))}`"


def link(text: str, target: str) -> str:
    """Return a link; `text` is Markdown already, `target` a relative path."""
    return f"[{text}]({quote(target, safe='/#+')})"


def table(head: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines, each column as wide as its longest text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def written(text: str, kind: str, block: Callable[[str], str]) -> str:
    """Return a page with each ``<!-- kind: name -->`` followed by ``block(name)``, then its end.

    `DataError` if the page has no such block, or one without its ``<!-- end -->``.
    """
    pattern = rf"(<!-- {kind}: (\w+) -->\n).*?(<!-- end -->)"
    new, count = re.subn(pattern, lambda m: f"{m[1]}{block(m[2])}\n{m[3]}", text, flags=re.S)
    if not count or count != text.count(f"<!-- {kind}: "):
        raise DataError(f"a page needs each `<!-- {kind}: NAME -->` with its own `<!-- end -->`")
    return new
