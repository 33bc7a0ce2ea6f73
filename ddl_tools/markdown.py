"""Text that programs write: tables, also in Markdown, and blocks of a page between two marks."""

import re
from collections.abc import Callable, Iterable, Sequence

from ddl_core.errors import DataError


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
