"""Generated blocks of the README and of docs/results/: written from records, between markers."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from ddl_core.analysis import claims, results_table
from ddl_core.analysis.figures import comparison
from ddl_core.analysis.tables import runs_table, windows_table
from ddl_core.errors import DataError
from ddl_core.records.paths import README, RESULT_PAGES, Tree
from ddl_core.records.storage import write_atomically

HEADLINE = "laptop"  # the study whose figure the README begins with
PAGES = {
    "results": README,
    "ratios": RESULT_PAGES / "ratios.md",
    "statements": RESULT_PAGES / "statements.md",
}


def texts(tree: Tree) -> dict[str, str]:
    """Return the text of each block of `PAGES`, from records and the figures drawn from them."""
    runs, windows = runs_table(tree.runs), windows_table(tree.runs)
    own = [part[part["study"] == HEADLINE] for part in (runs, windows)]
    points = comparison.points(*own)
    told = comparison.sentences(points) or ["no arms have taken turns yet"]
    judged = claims.of_records(tree)
    return {
        "results": results_table.render(tree, judged),
        "ratios": "\n".join(["```text", *told, "```"]),
        "statements": statements(judged),
    }


def write(tree: Tree) -> None:
    """Write each block into its page.

    Raises
    ------
    DataError
        As `update`.
    """
    for name, text in texts(tree).items():
        update(PAGES[name], {name: text})


def update(readme: Path, told: Mapping[str, str]) -> None:
    """Write each text between the markers of its name in `readme`.

    Raises
    ------
    DataError
        If the file cannot be read, or does not hold each marker once.
    """
    for name, text in told.items():
        before, _, after = _split(readme, name)
        begin, end = _markers(name)
        write_atomically(readme, f"{before}{begin}\n{text}\n{end}{after}")


def shown(readme: Path, name: str) -> str:
    """Return what stands between the markers of a name.

    Raises
    ------
    DataError
        As `update`.
    """
    return _split(readme, name)[1]


def _markers(name: str) -> tuple[str, str]:
    return (
        f"<!-- {name}: written by `ddl figures` from data/, not by hand -->",
        f"<!-- end of {name} -->",
    )


def _split(readme: Path, name: str) -> tuple[str, str, str]:
    begin, end = _markers(name)
    try:
        text = readme.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"cannot read {readme}: {error.strerror}; it belongs to the repository, "
            "restore it with `git checkout`"
        ) from None
    once = [text.count(marker) for marker in (begin, end)] == [1, 1]
    if not once or text.find(end) < text.find(begin):
        raise DataError(
            f"{readme} does not hold the line {begin!r} and then {end!r}, each once: what the "
            "records say is written between them; put them back"
        )
    before, rest = text.split(begin)
    inside, after = rest.split(end)
    return before, inside.strip("\n"), after


def statements(table: pd.DataFrame) -> str:
    """Return judged statements of the paper as Markdown: counts, decided ones, then each line."""
    counts = claims.summary(table)
    decided = table[table["verdict"] != claims.UNDECIDED].to_dict("records")
    of_paper = counts.drop("quoted")
    quoted = len(table) - int(of_paper.drop(columns=claims.SEEN).to_numpy().sum())
    lines = [
        f"Of {len(table) - quoted} statements of the paper these records support "
        f"{of_paper[claims.SUPPORTED].sum()} and contradict {of_paper[claims.CONTRADICTED].sum()}. "
        f"Of {of_paper[claims.SEEN].sum()} they show something, at other sizes or on other "
        f"hardware, which judges nothing. {quoted} more are quoted from others, and not tested.",
        "",
        *_head(["", *counts.columns]),
        *(_line([kind, *counts.loc[kind]]) for kind in counts.index),
        "",
        *(f"- {row['claim']} ({row['place']}): {row['verdict']}, {row['why']}." for row in decided),
        *([""] if decided else []),
        *_head(["", "the paper says", "verdict on its terms", "seen here"]),
        *(
            _line([row["statement"], row["claim"], f"{row['verdict']}: {row['why']}", row["here"]])
            for row in table.to_dict("records")
        ),
    ]
    return "\n".join(lines)


def _head(names: list[str]) -> list[str]:
    return [_line(names), "|" + "---|" * len(names)]


def _line(cells: Iterable[object]) -> str:
    texts = [str(cell).replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(texts)} |"
