"""The table of statements as Markdown, for docs/results/statements.md."""

from collections.abc import Iterable

import pandas as pd

from ddl_core.analysis.claims.decide import CONTRADICTED, SUPPORTED, UNDECIDED
from ddl_core.analysis.claims.statements import KINDS
from ddl_core.analysis.claims.table import SEEN, summary


def render(table: pd.DataFrame) -> str:
    """Return the table that `judged` gave as Markdown: counts, what is decided, then each line."""
    counts = summary(table)
    decided = table[table["verdict"] != UNDECIDED].to_dict("records")
    quoted = int(counts.loc[KINDS["quoted"]].drop(SEEN).sum())
    of_paper = counts.drop(KINDS["quoted"])
    lines = [
        f"Of {len(table) - quoted} statements of the paper these records support "
        f"{of_paper[SUPPORTED].sum()} and contradict {of_paper[CONTRADICTED].sum()}. Of "
        f"{of_paper[SEEN].sum()} they show something, at other sizes or on other hardware, which "
        f"judges nothing. {quoted} more are quoted from others, and not tested.",
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
