"""A document of a few kinds of blocks, written as Markdown, as LaTeX and as PDF.

Blocks hold plain texts, so all three show the same strings; each form escapes what it must.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from matplotlib import get_data_path

from ddl_tools import markdown
from ddl_tools.markdown import escape
from ddl_tools.visible import visible

if TYPE_CHECKING:
    from fpdf import FPDF

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # in a PDF: the same document has the same bytes
_INK, _GREY, _WARN = (0, 0, 0), (90, 90, 90), (160, 0, 0)
_FONT = "DejaVu"  # of matplotlib: it has all signs that texts have
_POINTS = 8.5
_MARGIN = 18  # mm


@dataclass(frozen=True)
class Heading:
    """A heading of a section; `apart` ones begin a page."""

    text: str
    apart: bool = False


@dataclass(frozen=True)
class Text:
    """A paragraph; `strong` ones must be seen first."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Items:
    """A list; each item is a text and the address of its source, which may be empty."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """A table of texts; `caption` says what it shows."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str


@dataclass(frozen=True)
class Picture:
    """A figure: its files by their path without suffix, PDF and PNG, and its caption."""

    stem: Path
    caption: str


Block = Heading | Text | Items | Table | Picture


@dataclass(frozen=True)
class Document:
    """A title and what stands below it."""

    title: str
    blocks: Sequence[Block]


def as_markdown(document: Document, mark: str) -> str:
    """Return a document as Markdown, with `mark` in a comment of its first line."""
    parts = [f"<!-- {mark} -->", f"# {escape(document.title)}"]
    for block in document.blocks:
        match block:
            case Heading(text):
                parts.append(f"## {escape(text)}")
            case Text(text, strong):
                parts.append(f"**{escape(text)}**" if strong else escape(text))
            case Items(items):
                parts.append("\n".join(f"- {escape(text)}{_link(to)}" for text, to in items))
            case Table(head, rows, caption):
                parts.append(f"*{escape(caption)}*")
                parts.append(markdown.table(_escaped(head), map(_escaped, rows)))
            case Picture(stem, caption):
                parts.append(f"![{escape(caption)}]({stem.name}.png)")
                parts.append(f"*{escape(caption)}*")
    return "\n\n".join(parts) + "\n"


def _escaped(cells: Sequence[str]) -> list[str]:
    return list(map(escape, cells))


def _link(address: str) -> str:
    return f" [source]({address})" if address else ""


# What LaTeX takes for itself, and signs that its usual fonts of text lack.
_TEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "×": r"\ensuremath{\times}",
    "\N{MINUS SIGN}": r"\ensuremath{-}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def tex(text: object) -> str:
    """Return a text as LaTeX that shows it; a number stays with the unit or bracket after it."""
    line = " ".join(visible(text).split())
    line = "".join(_TEX.get(sign, sign) for sign in line)
    return re.sub(r"(?<=\d) (?=\[\d)", "~", line)


def as_latex(document: Document, mark: str) -> str:
    """Return a document as a part of a LaTeX file that loads graphicx and booktabs."""
    parts = [
        f"% {mark}\n% \\usepackage{{booktabs,graphicx}} and, with an older LaTeX than 2018, "
        "\\usepackage[utf8]{inputenc}",
        f"\\section*{{{tex(document.title)}}}",
    ]
    for block in document.blocks:
        match block:
            case Heading(text):
                clear = "\\clearpage\n" if block.apart else ""
                parts.append(f"{clear}\\subsection*{{{tex(text)}}}")
            case Text(text, strong):
                parts.append(f"\\textbf{{{tex(text)}}}" if strong else tex(text))
            case Items(items):
                lines = [f"\\item {tex(text)}{_tex_link(to)}" for text, to in items]
                parts.append("\n".join(["\\begin{itemize}", *lines, "\\end{itemize}"]))
            case Table(head, rows, caption):
                parts.append(_tex_table(head, rows, caption))
            case Picture(stem, caption):
                inside = [
                    "\\centering",
                    f"\\includegraphics[width=\\linewidth]{{{stem.name}}}",
                    f"\\caption{{{tex(caption)}}}",
                ]
                parts.append("\n".join(["\\begin{figure}[htbp]", *inside, "\\end{figure}"]))
    return "\n\n".join(parts) + "\n"


def _tex_link(address: str) -> str:
    """Return an address that breaks after slashes: no package is needed."""
    broken = tex(address).replace("/", "/\\allowbreak{}")
    return f" \\texttt{{{broken}}}" if address else ""


def _tex_table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    def row(cells: Sequence[str]) -> str:  # a bracket after \\ would be its argument
        return f"{' & '.join(map(tex, cells))} \\\\{{}}"

    return "\n".join(
        [
            "\\begin{table}[htbp]",
            "\\centering\\small",
            f"\\caption{{{tex(caption)}}}",
            f"\\begin{{tabular}}{{{'r' * len(head)}}}",
            "\\toprule",
            row(head),
            "\\midrule",
            *map(row, rows),
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
        ]
    )


def as_pdf(document: Document, folder: Path) -> bytes:
    """Return a document as a PDF of A4; pictures lie in `folder`.

    It needs fpdf2, of requirements/export.txt.
    """
    from fpdf import FPDF

    pdf = FPDF(format="A4")
    pdf.set_creation_date(_EPOCH)
    pdf.set_title(document.title)
    pdf.set_lang("en")
    pdf.set_margin(_MARGIN)
    fonts = Path(get_data_path(), "fonts", "ttf")
    for style, name in ("", "DejaVuSans"), ("B", "DejaVuSans-Bold"):
        pdf.add_font(_FONT, style, fonts / f"{name}.ttf")
    pdf.add_page()
    _paragraph(pdf, document.title, size=13, style="B", after=3)
    for block in document.blocks:
        match block:
            case Heading(text):
                if block.apart or pdf.will_page_break(30):  # no heading at the end of a page
                    pdf.add_page()
                pdf.ln(2)
                _paragraph(pdf, text, size=11, style="B")
            case Text(text, strong):
                if strong:
                    _paragraph(pdf, text, style="B", colour=_WARN)
                else:
                    _paragraph(pdf, text)
            case Items(items):
                for text, address in items:
                    _item(pdf, text, address)
            case Table(head, rows, caption):
                _paragraph(pdf, caption, size=_POINTS - 1, colour=_GREY, after=1)
                _table(pdf, head, rows)
            case Picture(stem, caption):
                pdf.image(folder / f"{stem.name}.png", w=0.92 * pdf.epw, alt_text=caption)
                _paragraph(pdf, caption, size=_POINTS - 2, colour=_GREY)
    return bytes(pdf.output())


def _paragraph(
    pdf: "FPDF",
    text: str,
    *,
    size: float = _POINTS,
    style: Literal["", "B"] = "",
    colour: tuple[int, int, int] = _INK,
    after: float = 2,
) -> None:
    pdf.set_font(_FONT, style, size)
    pdf.set_text_color(*colour)
    line = " ".join(visible(text).split())
    pdf.multi_cell(0, 0.5 * size, line, align="L", new_x="LMARGIN", new_y="NEXT")
    pdf.ln(after)


def _item(pdf: "FPDF", text: str, address: str) -> None:
    if pdf.will_page_break(15):
        pdf.add_page()
    _paragraph(pdf, f"\N{BULLET} {text}", after=0)
    if address:
        pdf.set_font(_FONT, "", _POINTS - 2)
        pdf.set_text_color(*_GREY)
        pdf.multi_cell(0, 3.5, address, align="L", link=address, new_x="LMARGIN", new_y="NEXT")
    pdf.ln(1)


def _table(pdf: "FPDF", head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Draw a table whose columns are as wide as their longest text needs."""
    pdf.set_text_color(*_INK)
    columns = [*zip(head, *rows, strict=True)]
    pdf.set_font(_FONT, "B", _POINTS - 0.5)  # of the head; the widest of all
    widths = [max(map(pdf.get_string_width, column)) for column in columns]
    pdf.set_font(_FONT, "", _POINTS - 0.5)
    with pdf.table(
        borders_layout="SINGLE_TOP_LINE",
        col_widths=[width + 5 for width in widths],
        line_height=5,
        text_align="RIGHT",
        width=min(pdf.epw, sum(widths) + 5 * len(widths)),
        align="LEFT",
    ) as table:
        for cells in (head, *rows):
            table.row(list(map(visible, cells)))
    pdf.ln(3)
