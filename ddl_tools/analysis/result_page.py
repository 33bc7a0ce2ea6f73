"""The page beside the figures of a study: answers, figures, captions and tables.

It is a README.md, which code-hosting sites show with the folder. An index leads to all pages.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.config import RunSpec
from ddl_tools import markdown
from ddl_tools.analysis.configurations import specs
from ddl_tools.analysis.confirmation import confirmation
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.canvas import caption_of, title_of
from ddl_tools.analysis.question import MOST_ROWS, Tables
from ddl_tools.analysis.ratios import unconfirmed
from ddl_tools.analysis.tables import WITHDRAWN, counts, is_emulated, whole
from ddl_tools.markdown import code, escape
from ddl_tools.names import common, phrase, plural
from ddl_tools.records.paths import PROJECT, Tree

PAGE = "README.md"
_MARK = "<!-- written by `ddl figures` from records, not by hand -->"
_FILES = re.compile(r"^Files: \[CSV\]\((\w+)\.csv\)", re.M)
_INDEX = """\
# Results

{mark}

Every study with its question and its findings. Each page has the answers, the figures, their
captions and tables. The numbers are in the CSV file of each figure.

{entries}
"""


def section(
    name: str,
    points: pd.DataFrame,
    figure: Figure | None,
    folder: Path,
    notes: Sequence[str] = (),
) -> str:
    """Return the answer to a question with its figure; the files are in `folder`.

    Where no figure is drawn, a line has what its caption would: origin and `notes`.
    """
    question = QUESTIONS[name]
    table, rest = question.table(points), len(question.rows(points)) - MOST_ROWS
    kinds = ["csv", "svg", "pdf"] if figure else ["csv"]
    notebook = PROJECT / "notebooks" / f"{question.notebook}.ipynb"
    caption = escape(" ".join([captions.undrawn(points), *notes]).strip())
    parts = [
        f"## {question.asks}",
        "\n".join(f"- {escape(sentence)}" for sentence in question.sentences(points)),
        *(_drawn(name, figure) if figure else [caption]),
        markdown.table(
            [escape(head) for head in table],
            ([escape(cell) for cell in row] for row in table.itertuples(index=False)),
        ),
        *([f"Left out: {plural(rest, 'row')}; the CSV file has all values."] if rest > 0 else []),
        *_second(points, folder),
        f"Files: {', '.join(f'[{kind.upper()}]({name}.{kind})' for kind in kinds)}. "
        f"How to read it: {link('notebook', notebook, folder)}.",
    ]
    return "\n\n".join(filter(None, parts))


def _drawn(name: str, figure: Figure) -> list[str]:
    """Return the picture of a figure and its caption."""
    return [f"![{escape(title_of(figure))}]({name}.png)", f"*{escape(caption_of(figure))}*"]


def _second(points: pd.DataFrame, folder: Path) -> list[str]:
    """Return a note on what a second measurement confirms, if there is one."""
    found = confirmation(points)
    if found is None:
        return []
    page = PROJECT / "docs" / "results" / "reproducibility.md#second-measurements"
    counts = f"> **Note** {link('Measured again', page, folder)}: {found.sentence}."
    return ["\n".join([counts, *(f"> - {escape(text)}" for text in unconfirmed(points))])]


def confirmed(points: pd.DataFrame) -> list[str]:
    """Return the sentence of the index on what a second measurement confirms, if there is one."""
    found = confirmation(points)
    if found is None:
        return []
    return [
        f"Measured again, {found.agree} of {found.compared} ratios agree and {found.confirmed} of "
        f"{found.decided} decided ones are confirmed"
    ]


def page(title: str, about: str, sections: Iterable[str]) -> str:
    """Return the page of a folder of figures from its title and the Markdown of its parts."""
    return "\n\n".join([f"# {escape(title)}", _MARK, about, *sections]) + "\n"


def index(entries: Iterable[tuple[str, str, Sequence[str]]]) -> str:
    """Return the index of pages from the folder, question and findings of each."""
    texts = [
        f"- {markdown.link(escape(title), f'{name}/{PAGE}')}: "
        + " ".join(escape(one.rstrip(".") + ".") for one in found)
        for name, title, found in entries
    ]
    return _INDEX.format(mark=_MARK, entries="\n".join(texts))


def may_write(page: Path) -> bool:
    """Say whether no file, or a page that `ddl figures` wrote, has this name."""
    return bool(_text(page)) or not os.path.lexists(page)


def figures_of(page: Path) -> set[str]:
    """Return the names of the figures and tables on a page of `ddl figures`; of others, none."""
    return set(_FILES.findall(_text(page)))


def remove_page(page: Path) -> None:
    """Remove a page that `ddl figures` wrote, and no other file."""
    if _text(page):
        page.unlink()


def _text(page: Path) -> str:
    """Return the text of a page that `ddl figures` wrote; of another file or a link, nothing."""
    if page.is_symlink() or not page.is_file():
        return ""
    text = page.read_text(encoding="utf-8", errors="replace")
    return text if _MARK in text else ""


def head(tree: Tree, study: str, tables: Tables, folder: Path) -> tuple[str, str]:
    """Return the title of a page, and how many runs it shows, where and by which code.

    `study` is empty for what only the paper states.
    """
    if not study:
        page = PROJECT / "docs" / "results" / "statements.md"
        text = "These figures show what the paper states and what follows from it. The "
        text += f"{link('list of statements', page, folder)} compares it with the runs."
        return "Numbers of the paper and advice", text
    runs = tables.runs
    table = link(counts(runs), tree.tables / f"{study}.csv", folder)
    made = f"Study {code(study)}, {table}, on {machines(runs)}; code {commits(runs)}."
    about = f"All runs: {shared}." if (shared := shared_settings(runs)) else ""
    title = tables.study.question if tables.study else study
    ends = "A bracket holds the ends of a bar; the caption says which interval it is."
    remarks = map(escape, notes(tree, study))
    facts = [*_read_again(runs), *_own_order(runs), *_withdrawn(runs), *_emulated(runs, folder)]
    texts = [made, about, *facts, *remarks, ends]
    return title, " ".join(filter(None, texts))


def shared_settings(runs: pd.DataFrame) -> str:
    """Return as Markdown what all runs share of network, image size, batch and precision."""
    names = ["model", "image_size", "local_batch_size", "precision"]
    if is_emulated(runs).any():  # the size of images changes nothing
        names.remove("image_size")
    known = whole(runs)
    if known["accumulation"].nunique() > 1:  # a batch is then several of these
        names.remove("local_batch_size")
    return escape(common(specs(known), names)) if len(known) else ""


def _read_again(runs: pd.DataFrame) -> list[str]:
    """Return a sentence on how often an epoch reads the same images, if more than once."""
    reading = whole(runs)
    reading = reading[reading["loader"].ne("synthetic") & reading["train_images"].notna()]
    found = {
        (spec.dataset, spec.train_images, spec.passes(spec.train_images))
        for spec in (RunSpec(**fields) for fields in specs(reading))
        if spec.train_images
    }
    return [
        f"The loaders read the same {images} images ({style.dataset_name(name)}) {times} times in "
        "an epoch."
        for name, images, times in sorted(found)
        if times > 1
    ]


def _own_order(runs: pd.DataFrame) -> list[str]:
    """Return a sentence on the loaders whose training images have another order than the plan's."""
    own = whole(runs)
    own = own[own["image_order"] == "loader"]
    pairs = own[["loader", "data_format"]].drop_duplicates().itertuples(index=False)
    names = sorted(
        f"{phrase('loader', one)} with {phrase('data_format', form)}" for one, form in pairs
    )
    return [f"Images in the loader's own order: {escape(', '.join(names))}."] if names else []


def _withdrawn(runs: pd.DataFrame) -> list[str]:
    """Return a sentence on runs whose numbers no figure uses any more, and why."""
    reasons = runs.loc[runs["status"] == WITHDRAWN, "damage"].unique()
    return [f"Not drawn: {escape(reason)}." for reason in reasons]


def _emulated(runs: pd.DataFrame, folder: Path) -> list[str]:
    if not is_emulated(runs).any():
        return []
    rejected = int(runs["unfaithful"].notna().sum())
    how = link("how", PROJECT / "docs" / "explanation" / "emulation.md", folder)
    drawn = [f"Rejected and not drawn: {plural(rejected, 'run')}."] if rejected else []
    return [f"Emulated, not measured on a cluster ({how}).", *drawn]


def machines(runs: pd.DataFrame) -> str:
    """Return as Markdown the machines of some runs: their GPU, or processor and cores."""
    known = runs[["machine", "cpu_cores", "accelerator"]].drop_duplicates().dropna(how="all")
    cores = known["machine"] + " (" + known["cpu_cores"].astype("string") + " cores)"
    names = known["accelerator"].fillna(cores).dropna()
    return ", ".join(map(escape, sorted(set(names)))) or "an unknown machine"


def commits(runs: pd.DataFrame) -> str:
    """Return as Markdown the commits that made some runs."""
    return ", ".join(code(one[:8]) for one in sorted(runs["git_commit"].dropna().unique()))


def notes(tree: Tree, study: str) -> list[str]:
    """Return what readers of a study's figures must know of its runs, from the tree's notes."""
    if not tree.notes.exists():
        return []
    table = pd.read_csv(tree.notes, dtype="string")
    return list(table.loc[table["study"] == study, "note"])


def link(text: str, target: Path, folder: Path) -> str:
    """Return a link from a page in `folder`; `text` is Markdown."""
    return markdown.link(text, Path(os.path.relpath(target, folder)).as_posix())
