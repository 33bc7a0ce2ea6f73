"""The page beside the figures of a study: answers, figures, captions and tables.

It is a README.md, which code-hosting sites show with the folder. An index leads to all pages.
"""

import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.config import RunSpec
from ddl_core.errors import RecordError
from ddl_core.files import is_there, open_plain
from ddl_core.origin import IN_CLONE
from ddl_tools import markdown
from ddl_tools.analysis.configurations import specs
from ddl_tools.analysis.confirmation import confirmation
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.interleaving import lost_starts
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.canvas import caption_of, title_of
from ddl_tools.analysis.question import MOST_ROWS, Tables
from ddl_tools.analysis.ratios import unconfirmed
from ddl_tools.analysis.tables import WITHDRAWN, counts, is_emulated, whole
from ddl_tools.markdown import Markdown, code, escape
from ddl_tools.names import common, phrase, plural
from ddl_tools.records.paths import PROJECT, Tree
from ddl_tools.records.storage import MOST_RECORD, read_text, unexpected

PAGE = "README.md"
ALIKE = 1.1  # speeds of one machine at two starts
_MARK = Markdown("<!-- written by `ddl figures` from records, not by hand -->")
_FILES = re.compile(r"^Files: \[CSV\]\((\w+)\.csv\)", re.M)
_STUDY, _INDEX = (Path(__file__).with_name(f"{name}.md.j2") for name in ("study", "index"))


def section(
    name: str,
    points: pd.DataFrame,
    figure: Figure | None,
    folder: Path,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what the page of a study says of a question; the files are in `folder`.

    Where no figure is drawn, a line has what its caption would: origin and `notes`.
    """
    question = QUESTIONS[name]
    table, rest = question.table(points), len(question.rows(points)) - MOST_ROWS
    kinds = ["csv", "svg", "pdf"] if figure else ["csv"]
    notebook = PROJECT / "notebooks" / f"{question.notebook}.ipynb"
    again = PROJECT / "docs" / "results" / "reproducibility.md#second-measurements"
    second = confirmation(points)
    return {
        "name": name,
        "asks": question.asks,
        "sentences": question.sentences(points),
        "drawn": title_of(figure) if figure else "",
        "caption": caption_of(figure)
        if figure
        else " ".join([captions.undrawn(points), *notes]).strip(),
        "table": markdown.table(
            [escape(head) for head in table],
            ([escape(cell) for cell in row] for row in table.itertuples(index=False)),
        ),
        "rest": plural(rest, "row") if rest > 0 else "",
        "second": second,
        "measured_again": link("Measured again", again, folder),
        "unconfirmed": unconfirmed(points) if second else [],
        "files": Markdown(", ".join(markdown.link(one.upper(), f"{name}.{one}") for one in kinds)),
        "notebook": link("notebook", notebook, folder),
    }


def confirmed(points: pd.DataFrame) -> list[str]:
    """Return the sentence of the index on what a second measurement confirms, if there is one."""
    found = confirmation(points)
    if found is None:
        return []
    return [f"Measured again, {found.agreement} and {found.confirmations('one')}"]


def page(study: str, title: str, about: Markdown, sections: Iterable[Mapping[str, Any]]) -> str:
    """Return the page of a folder of figures: its title, what it shows, and its sections.

    The page of a study has its name as heading, as a question may be long.
    """
    heading, question = (Markdown(f"Study {code(study)}"), title) if study else (title, "")
    values = {"heading": heading, "question": question, "about": about, "sections": sections}
    return markdown.page(_STUDY, mark=_MARK, **values)


def index(entries: Iterable[tuple[str, str, Sequence[str]]]) -> str:
    """Return the index of pages from the folder, question and findings of each."""
    shown = [
        {
            "link": markdown.link(escape(title), f"{name}/{PAGE}"),
            "findings": [one.rstrip(".") + "." for one in found],
        }
        for name, title, found in entries
    ]
    return markdown.page(_INDEX, mark=_MARK, entries=shown)


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
    with open_plain(page) as file:
        text = file.read(MOST_RECORD).decode(errors="replace")
    return text if _MARK in text else ""


def head(tree: Tree, study: str, tables: Tables, folder: Path) -> tuple[str, Markdown]:
    """Return the title of a page, and how many runs it shows, where and by which code.

    `study` is empty for what only the paper states.
    """
    if not study:
        page = PROJECT / "docs" / "results" / "statements.md"
        text = "These figures show what the paper states and what follows from it. The "
        text += f"{link('list of statements', page, folder)} compares it with the runs."
        return "Numbers of the paper and advice", Markdown(text)
    runs = tables.runs
    table = link(counts(runs), tree.tables / f"{study}.csv", folder)
    made = f"{table}, on {machines(runs)}; code {commits(runs)}."
    every = "All runs" if whole(runs)["work"].nunique() < 2 else "All training runs"
    about = f"{every}: {shared}." if (shared := shared_settings(runs)) else ""
    title = tables.study.question if tables.study else study
    ends = "[ ] = 95 % interval over starts, unless the caption or the column says otherwise."
    remarks: list[Markdown] = []
    with suppress(RecordError):  # `redraw` names it
        remarks = [*map(escape, notes(tree, study))]
    facts = [
        *_read_again(runs),
        *_own_order(runs),
        *_other_speeds(runs),
        *_withdrawn(runs),
        *_lost_starts(tables),
        *_emulated(runs, folder),
    ]
    texts = [made, about, *facts, *remarks, ends]
    return title, Markdown(" ".join(filter(None, texts)))


def shared_settings(runs: pd.DataFrame) -> str:
    """Return as Markdown what all runs share of network, image size, batch and precision."""
    names = ["command", "model", "image_size", "local_batch_size", "precision"]
    if is_emulated(runs).any():  # the size of images changes nothing
        names.remove("image_size")
    known = whole(runs)
    if known["accumulation"].nunique() > 1:  # a batch is then several of these
        names.remove("local_batch_size")
    trained = known[known["work"] == "train"]
    names += [name for name in ("channels_last", "compile") if trained[name].eq(True).all()]
    return escape(common(specs(trained if len(trained) else known), names)) if len(known) else ""


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


def _other_speeds(runs: pd.DataFrame) -> list[str]:
    """Return a sentence on each machine whose speed was not the same at all starts."""
    found = []
    for _, own in whole(runs).groupby(["machine", "cpu_cores"]):
        least, most = own["speed_mb_per_s"].min(), own["speed_mb_per_s"].max()
        if most > ALIKE * least:
            percent = 100 * (most / least - 1)
            found.append(
                f"The speed of {machines(own)} differed by {percent:.0f} % between starts "
                f"({least:,.0f} to {most:,.0f} MB/s of SHA-256): it is not one machine, or it did "
                "something else."
            )
    return found


def _withdrawn(runs: pd.DataFrame) -> list[str]:
    """Return a sentence on runs whose numbers no figure uses any more, and why."""
    reasons = runs.loc[runs["status"] == WITHDRAWN, "damage"].unique()
    return [f"Not drawn: {escape(reason)}." for reason in reasons]


def _lost_starts(tables: Tables) -> list[str]:
    """Return a sentence on the starts that no throughput contains, if there are any."""
    blocks = [code(one) for own in lost_starts(tables.windows).values() for one in own]
    found = f"{plural(len(blocks), 'start')} ({', '.join(blocks)})"
    return [f"Lost, as no undisturbed round was left: {found}."] if blocks else []


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
    """Return what readers of a study's figures must know of its runs, from the tree's notes.

    `RecordError` where these cannot be read.
    """
    if not is_there(tree.notes):
        return []
    try:
        text = io.StringIO(read_text(tree.notes))
        table = pd.read_csv(text, dtype="string", usecols=["study", "note"])
    except Exception as error:  # of the file, the encoding, the format, or its columns
        raise RecordError(
            f"{tree.notes} is no table with the columns study and note: {unexpected(error)}"
        ) from None
    return list(table.loc[table["study"] == study, "note"].dropna())


def link(text: str, target: Path, folder: Path) -> Markdown:
    """Return a link from a page in `folder`; `text` is Markdown.

    Pages of docs/ are in a clone alone: elsewhere it is the text.
    """
    if not IN_CLONE and target.is_relative_to(PROJECT / "docs"):
        return Markdown(text)
    return markdown.link(text, Path(os.path.relpath(target, folder)).as_posix())
