"""Generated blocks of the README and docs/, and the text of `ddl study compare`.

Blocks are written between markers, from records and from the CSVs of figures drawn from them.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import pandas as pd

from ddl_core.errors import RecordError
from ddl_core.registry import title
from ddl_tools import markdown
from ddl_tools.analysis import estimates, ratios
from ddl_tools.analysis import statements as papers
from ddl_tools.analysis.confirmation import beside, confirmation
from ddl_tools.analysis.figures import comparison
from ddl_tools.analysis.findings import Finding, completed, findings, read_points
from ddl_tools.analysis.paper import AACH, Paper, in_table_2, read_paper
from ddl_tools.analysis.ratios import unconfirmed
from ddl_tools.analysis.result_page import PAGE, commits, link, machines
from ddl_tools.analysis.tables import is_emulated, read_table, runs_table, windows_table
from ddl_tools.records import agreement
from ddl_tools.records.ledger import find_study
from ddl_tools.records.paths import (
    PROJECT,
    README,
    RESULT_PAGES,
    Tree,
    committed,
    portable,
    repeated,
)
from ddl_tools.records.run import RunRecord
from ddl_tools.study import Study

EXCEPTIONS = 9  # to a statement, named one by one
RATIOS = "laptop"  # the study whose ratios have a page
PAGES = (
    README,
    *(RESULT_PAGES / f"{one}.md" for one in ("ratios", "statements", "related-papers")),
    *(RESULT_PAGES / f"{one}.md" for one in ("reproducibility", "paper")),
    PROJECT / "docs" / "explanation" / "fairness.md",
)
_SECOND = {  # counts of a `Confirmation`
    "agree": "Agree",
    "confirmed": "Confirmed",
    "same_direction": "Same direction",
    "undecided": "Undecided",
    "otherwise": "Otherwise",
}


def blocks(tree: Tree) -> markdown.Blocks:
    """Return the blocks of `PAGES`, from records and the figures drawn from them."""
    return markdown.Blocks("ddl figures", PAGES, texts(tree).__getitem__)


def texts(tree: Tree) -> dict[str, str]:
    """Return the text of each block of `PAGES` by its name."""
    lines = ratios.sentences(_points(tree, RATIOS)) or [
        "no configurations have been interleaved yet"
    ]
    paper = read_paper()
    asked = papers.compared(tree, paper)
    stated, answer = papers.listed(paper, asked), papers.answer(paper, asked)
    own = stated["paper"] == AACH
    every = findings(tree, answer)
    return {
        "found": found(every),
        "results": results(tree, every),
        "ratios": "\n".join(["```text", *lines, "```"]),
        "statements": f"{' '.join(answer)}\n\n{statements(stated[own])}",
        "related": statements(stated[~own]),
        "hardware": hardware(tree),
        "table_2": table_2(paper),
        "confirmation": confirmations(tree),
        "weights": weights(tree),
    }


def statements(table: pd.DataFrame) -> str:
    """Return statements of papers as Markdown, see `papers.listed`."""
    heads = {
        "paper": "paper",
        "statement": "",
        "claim": "statement",
        "here": "here, not on the paper's hardware",
        "against": "contradicted by the paper itself",
    }
    if table["paper"].nunique() == 1:
        del heads["paper"]
    if table["against"].eq("").all():
        del heads["against"]
    # A name with underscores has no place to break: its column would take a quarter of the width.
    table = table.assign(statement=table["statement"].str.replace("_", " "))
    return markdown.table([*heads.values()], table[[*heads]].map(markdown.escape).to_numpy())


def table_2(paper: Paper) -> str:
    """Return the statements on the paper's Table 2, compared with that table alone, as Markdown."""
    claims_of = paper.claims.drop_duplicates("statement").set_index("statement")["claim"]
    rows = []
    for name, pairs in in_table_2(paper).items():
        against = [one for one in pairs if not one.agrees]
        shown = "; ".join(dict.fromkeys(one.place for one in against))
        shown = shown if len(against) <= EXCEPTIONS else f"{len(against)} pairs"
        rows.append((name, claims_of[name], f"{len(pairs) - len(against)} of {len(pairs)}", shown))
    return markdown.table(["", "statement", "pairs that agree", "exceptions"], rows)


def hardware(tree: Tree) -> str:
    """Return the machines and commits of each published study as Markdown."""
    rows = []
    for name in tree.studies():
        runs = read_table(tree.tables / f"{name}.csv")
        page = link(f"`{name}`", tree.figures / name / PAGE, RESULT_PAGES)
        rows.append((page, len(runs), machines(runs), commits(runs)))
    return markdown.table(["Study", "Runs", "Machine", "Code"], rows)


def confirmations(tree: Tree) -> str:
    """Return as Markdown how many ratios of each study are decided, and confirmed by a second one.

    Ratios are those with an interval, in the figure that compares the configurations of a study.
    Below the table are those that are not confirmed, by study.
    """
    rows: list[tuple[object, ...]] = []
    items: list[str] = []
    for path in sorted(tree.figures.glob("*/comparison.csv")):
        name, points = path.parent.name, read_points(path)
        decisions = points["decision"].dropna()
        if decisions.empty:
            continue
        row = (f"`{name}`", len(decisions), int((decisions != estimates.INCONCLUSIVE).sum()))
        found = confirmation(points)
        second = [getattr(found, name, "") for name in _SECOND]
        rows.append((*row, *second))
        items += [f"- `{name}`: {text}." for text in unconfirmed(points)]
    columns = ["Study", "Ratios", "Decided", *_SECOND.values()]
    named = ["Ratios that do not agree, or are not confirmed:\n", *items] if items else []
    return "\n\n".join([markdown.table(columns, rows), *filter(None, ["\n".join(named)])])


def found(findings: Sequence[Finding]) -> str:
    """Return the findings at the top of the README as a list."""
    return "\n".join(one.line for one in findings if one.topic)


def results(tree: Tree, findings: Sequence[Finding]) -> str:
    """Return the README's table of findings, below a sentence on what is published."""
    rows = [one.row for one in findings]
    columns = ["Question", "Finding", "Repeated?", "Holds for"]
    return f"{_published(tree)}\n\n{markdown.table(columns, rows)}"


def _published(tree: Tree) -> str:
    runs = [read_table(tree.tables / f"{name}.csv") for name in tree.studies()]
    if not runs:
        return "No run is published."
    every = pd.concat(runs)
    return (
        f"{len(every)} runs of {len(runs)} studies are published in [data/runs/](data/runs), "
        f"{int(is_emulated(every).sum())} of them emulated."
    )


def weights(tree: Tree) -> str:
    """Return as Markdown the groups whose final weights may differ: how many do, in what way.

    Second starts are runs with the random numbers of another run.
    """

    def place(record: RunRecord) -> tuple[str, ...]:
        spec, system = record.spec, record.system or {}
        processor = system.get("accelerator") or system.get("cpu") or "unknown"
        return f"`{record.study}`", title("framework", spec.framework), processor, spec.precision

    done = completed(tree)
    second = Counter(place(one) for one in done if one.spec.second_start)
    free = sorted(
        (one for one in agreement.groups(done) if not one.promised),
        key=lambda group: place(group.records[0]),
    )
    rows: list[tuple[object, ...]] = []
    for where, alike in groupby(free, lambda group: place(group.records[0])):
        groups = list(alike)
        others = [
            f"{len({run.weights_sha256 for run in one.records})} of {len(one.records)}"
            for one in groups
            if not one.agrees
        ]
        same = len(groups) - len(others)
        rows.append((*where, len(groups), same, "; ".join(others), second[where]))
    if not rows:
        return "No such group is published."
    columns = ["Study", "Framework", "Processor", "Precision", "Groups", "Same weights"]
    return markdown.table([*columns, "Hashes of the runs in others", "Second starts"], rows)


def compare(study: Study, tree: Tree) -> tuple[pd.DataFrame, list[str]]:
    """Return how fast each configuration is against the baseline, as a table and in sentences.

    Where the study is published and was measured twice, a line says what the second measurement
    confirms: `tree`, or of the published records those of `repeated`.

    `RecordError` if there is no ratio: nothing is measured yet, or the study has no throughputs.
    """
    points = _points(tree, study.name)
    lines = ratios.sentences(points)
    if not lines:
        raise RecordError(
            f"study {study.name!r} has no epochs to compare in {tree.runs}: run it with `ddl study "
            "run`; if it has run, give it more epochs, or a smaller discard_steps (the first steps "
            "and the first round of each start do not count). Studies of accuracy and of emulated "
            "nodes have figures only: `ddl figures`"
        )
    published = tree.root == committed().root
    against = repeated() if published else committed()
    other = _points(against, study.name)
    if found := confirmation(beside(*((points, other) if published else (other, points)))):
        name = "second" if published else "published"
        place = portable(against.root)
        lines.append(f"compared with the {name} measurement in {place}: {found.sentence}")
    return points, lines


def _points(tree: Tree, study: str) -> pd.DataFrame:
    """Return the configurations of a study with their ratios to the baseline."""
    runs, windows = runs_table(tree, studies=[study]), windows_table(tree, [study])
    return comparison.points(runs, windows, find_study(study, tree))
