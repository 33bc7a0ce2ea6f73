"""Text that programs write: templates, Markdown of foreign texts, tables, blocks of a page."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from ddl_core.errors import DataError
from ddl_core.files import replacing
from ddl_tools.visible import visible

# Within an element of its own, neither GitHub nor JupyterLab takes a sign for mathematics.
_SIGNS = {"<": "&lt;", ">": "&gt;", **{sign: f"<span>&#{ord(sign)};</span>" for sign in "\\$"}}
_INTERVAL = r"\[[-+]?\d[-+\d., ek]*\](?![(\[:])"  # numbers in brackets are no link
_MARKUP = r"[\\$*`~\[\]]|[<>](?!\d)|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])|^[#+-](?=\W|$)"
_MARKUP += r"|:(?=//)|(?<=(?i:www))\."  # addresses become links by themselves


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
            " ".join(visible(text).split()),
        )
    )


def code(text: object) -> Markdown:
    """Return a text as code within a line of Markdown; it cannot hold backticks."""
    return Markdown(f"`{' '.join(visible(text).split()).replace('`', chr(39))}`")


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
    return _environment(template, finalize=escape).get_template(template.name).render(**values)


def plain(template: Path, **values: Any) -> str:
    """Return the text that a template makes of `values`, for a terminal or a program."""
    return _environment(template).get_template(template.name).render(**values)


def web(template: Path, **values: Any) -> str:
    """Return the web page that a template makes of `values`, each of which it escapes."""
    environment = _environment(template, autoescape=True, finalize=_seen)
    return environment.get_template(template.name).render(**values)


def _seen(text: object) -> str:
    """Return a text of a web page as `visible` shows it; HTML stays HTML."""
    return type(text)(visible(text)) if isinstance(text, Markup) else visible(text)


def sentences(
    text: str, show: Callable[[Any], str], filters: Mapping[str, Callable[..., Any]]
) -> Template:
    """Return the template that a text is; `show` makes a text of each value."""
    environment = _environment(Path(__file__), finalize=show)
    environment.filters |= filters
    return environment.from_string(text)


def _environment(template: Path, *, autoescape: bool = False, **options: Any) -> Environment:
    """Return the templates beside one and, by folder and name, all of this package."""
    return Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=autoescape,  # for web pages
        **options,
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines, each column as wide as its longest text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


@dataclass(frozen=True)
class Blocks:
    """Blocks that a program writes into pages: ``<!-- kind: name -->``, its text, an end mark.

    `text` returns that of a block by its name.
    """

    kind: str
    pages: Sequence[Path]
    text: Callable[[str], str]

    def written(self, page: str) -> str:
        """Return a page with the text of each block put there anew.

        `DataError` if the page has no block of this kind, or one without its ``<!-- end -->``.
        """
        pattern = rf"(<!-- {self.kind}: (\w+) -->\n).*?(<!-- end -->)"
        new, count = re.subn(
            pattern, lambda found: f"{found[1]}{self.text(found[2])}\n{found[3]}", page, flags=re.S
        )
        if not count or count != page.count(f"<!-- {self.kind}: "):
            raise DataError(
                f"each `<!-- {self.kind}: NAME -->` needs its own `<!-- end -->`, and a page one"
            )
        return new

    def write(self) -> None:
        """Write the blocks of all pages; `DataError` if a page cannot be read or written."""
        for page in self.pages:
            try:
                text = self.written(page.read_text(encoding="utf-8"))
                with replacing(page) as file:
                    file.write(text.encode())
            except (OSError, UnicodeDecodeError, DataError) as error:
                raise DataError(
                    f"cannot write {self.kind} into {page}: {error}; it belongs to the "
                    "repository, restore it with `git checkout`"
                ) from None
