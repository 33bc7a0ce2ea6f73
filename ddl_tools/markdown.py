"""Text that programs write: Markdown of foreign texts, tables, and blocks of a page."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ddl_core.errors import DataError

# Within an element of its own, neither GitHub nor JupyterLab takes a sign for mathematics.
_SIGNS = {"<": "&lt;", ">": "&gt;", **{sign: f"<span>&#{ord(sign)};</span>" for sign in "\\$"}}
_INTERVAL = r"\[[-+]?\d[-+\d., ek]*\](?![(\[:])"  # numbers in brackets are no link
_MARKUP = r"[\\$*`~\[\]]|[<>](?!\d)|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])|^[#+-](?=\W|$)"


class Markdown(str):
    """A text that is Markdown already: no template escapes it, and a notebook shows it as such."""

    def _repr_markdown_(self) -> str:
        return str(self)


def escape(text: object) -> Markdown:
    """Return `text` as one line of Markdown that shows it and holds no markup.

    Bars are left to `table`. What is `Markdown` stays as it is.
    """
    if isinstance(text, Markdown):
        return text
    return Markdown(
        re.sub(
            f"({_INTERVAL})|{_MARKUP}",
            lambda found: found[1] or _SIGNS.get(found[0], f"\\{found[0]}"),
            " ".join(str(text).split()),
        )
    )


def code(text: object) -> Markdown:
    """Return a text as code within a line of Markdown; it cannot hold backticks."""
    return Markdown(f"`{' '.join(str(text).split()).replace('`', chr(39))}`")


def link(text: str, target: str) -> Markdown:
    """Return a link; `text` is Markdown already, `target` a relative path."""
    return Markdown(f"[{text}]({quote(target, safe='/#+')})")


def table(head: Sequence[object], rows: Iterable[Iterable[object]]) -> Markdown:
    """Return a table as Markdown; its cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in cells))


def page(template: Path, **values: Any) -> str:
    """Return the page that a template makes of `values`, each of which it escapes."""
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # for web pages
        finalize=escape,
    )
    return environment.get_template(template.name).render(**values)


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
