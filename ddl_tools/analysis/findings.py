"""Findings of the published records: what was found, whether it repeats, and what it holds for.

The README begins with the short form of some; its table has all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.analysis.confirmation import CONFIRMED, confirmation, outcomes
from ddl_tools.analysis.csv_file import read_csv
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.figures.accuracy_runs import RUNNING
from ddl_tools.analysis.figures.memory import saving
from ddl_tools.analysis.plot import captions
from ddl_tools.analysis.ratios import compared, without
from ddl_tools.analysis.redraw import tables_of
from ddl_tools.analysis.result_page import PAGE, shared_settings
from ddl_tools.analysis.tables import is_emulated, read_table
from ddl_tools.estimate import Estimate, percent, three_digits
from ddl_tools.markdown import escape, link
from ddl_tools.names import joined, plural
from ddl_tools.records import agreement
from ddl_tools.records.ledger import study_folders
from ddl_tools.records.paths import Tree
from ddl_tools.records.run import RunRecord, read_record
from ddl_tools.scaling import emulated

# Of a figure: its name, and how the sentence of the table begins.
_NETWORK = ("efficiency_emulated", "Efficiency on")
_MEMORY, _BATCHES = "memory_against_throughput", "accuracy_vs_batch_size"
NOT_TRIED = "not tried"
LARGE = 1.5  # a ratio from here on is said in times, a smaller one in percent


@dataclass(frozen=True)
class Finding:
    """An answer with what a reader must know to use it; all texts are Markdown.

    `page` says more, and is named from the root of the repository. `repeated` says what a second
    measurement found, and is empty where there can be none. `starts` says how many starts there
    are, of how many seconds. `topic` and `short` are for the top of the README; without these, only
    its table has the finding.
    """

    asks: str
    page: str
    text: str
    repeated: str
    holds: str
    starts: str = ""
    topic: str = ""
    short: str = ""

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The finding as a row of a table: question, answer, repeated or not, what it holds for."""
        repeated = self.repeated or "\N{EN DASH}"
        holds = "; ".join(filter(None, [self.holds, self.starts]))
        return link(self.asks, self.page), self.text, repeated, holds

    @property
    def line(self) -> str:
        """The finding as an item of a list."""
        again = f"measured again: {self.repeated}" if self.repeated else ""
        again = "not measured again" if self.repeated == NOT_TRIED else again
        about = "; ".join(filter(None, [self.holds, self.starts, again]))
        return f"- **{link(self.topic, self.page)}**: {self.short} *{about}.*"


def findings(tree: Tree, statements: Sequence[str]) -> list[Finding]:
    """Return the findings of a tree, in the order of the README.

    `statements` is what `statements.answer` says of the paper. What `tree` has no record of is left
    out.
    """
    found = [
        _speeds(tree, "How should one GPU train?", "recommend_resnet50_f89579", "", "One GPU"),
        _speeds(tree, "Which loader feeds one GPU?", "one_gpu_loaders", "loader", "Loaders"),
        _speeds(tree, "Horovod or DeepSpeed instead of DDP?", "laptop", "strategy"),
        _speeds(tree, "DALI instead of the native loader?", "laptop", "loader"),
        _memory(tree, "What does sharding save?", "sharding", "Memory"),
        _figure(tree, "What does a slow network cost?", "emulated_cluster", _NETWORK, "Networks"),
        _batches(tree, "What do large batches cost?", "accuracy_laptop"),
        _weights(tree),
        _prediction(tree),
        _repetition(tree),
        _paper(*statements[:2]),
    ]
    return [one for one in found if one]


def read_points(path: Path) -> pd.DataFrame:
    """Read the numbers of a figure; a commit such as 73e28947 is no number."""
    return read_csv(path, dtype={"commit": "string"})


def _points(tree: Tree, study: str, figure: str) -> pd.DataFrame | None:
    path = tree.figures / study / f"{figure}.csv"
    return read_points(path) if path.exists() else None


def _speeds(tree: Tree, question: str, study: str, factor: str, topic: str = "") -> Finding | None:
    """Return how much faster or slower another strategy, loader or other `factor` is.

    Without a factor it is the first in which configurations differ from the baseline.
    """
    points = _points(tree, study, "comparison")
    if points is None:
        return None
    points = points if "again_decision" in points else points.assign(again_decision=None)
    groups = [one for one in compared(points) if factor in ("", one["factor"])]
    if not groups:
        return None
    first = groups[0]["first"]
    sure = [row for row in groups[0]["rows"] if not pd.isna(row["decision"])]
    rows = sure or groups[0]["rows"]
    gains = "; ".join(f"{row['short']} {_gain(row)}" for row in rows)
    text = f"Relative to {first['label']} ({three_digits(first['value'])} images/s): {gains}."
    return Finding(
        asks=question,
        page=_page_of(study),
        text=escape(text),
        repeated=_confirmed(pd.DataFrame(rows)),
        holds=_holds(tree, study, points),
        starts=_starts(tree, study, pd.DataFrame(rows)["n"]),
        topic=topic,
        short=escape(_fastest(rows[0], first["label"])),
    )


def _fastest(row: Any, base: str) -> str:
    """Return a sentence on a configuration and the baseline, without what their labels share."""
    sure = row["decision"] == estimates.GREATER
    verb = "trains" if sure else "is not proven to be faster: it trains"
    ratio = f"{Estimate.of(row, 'ratio'):.2f} times as fast as"
    names = (row["short"], without(base, row["label"]))
    one, other = (name.replace(", ", " with ", 1) for name in names)
    return f"{one} {verb} {ratio} {other}."


def _gain(row: Any) -> str:
    """Return a ratio to the baseline in words: percent where it is small, times where it is not."""
    ratio, decided = row["ratio"], row["decision"]
    shown = f"{Estimate.of(row, 'ratio'):.2f}"
    if decided == estimates.LESS:
        return f"{percent(1 - ratio)} slower ({shown})"
    if decided == estimates.GREATER and ratio < LARGE:
        return f"{percent(ratio - 1)} faster ({shown})"
    return f"{shown} times" if decided == estimates.GREATER else joined(shown, captions.word(row))


def _figure(
    tree: Tree, question: str, study: str, shown: tuple[str, str], topic: str = ""
) -> Finding | None:
    """Return a sentence of a figure, and its first one."""
    figure, begins = shown
    points = _points(tree, study, figure)
    if points is None:
        return None
    sentences = QUESTIONS[figure].sentences(points)
    return Finding(
        asks=question,
        page=_page_of(study),
        text=escape(next((one for one in sentences if one.startswith(begins)), sentences[0])),
        repeated=NOT_TRIED,
        holds=_holds(tree, study, points),
        starts=_counted(points["n"]),
        topic=topic,
        short=escape(sentences[0]),
    )


def _memory(tree: Tree, question: str, study: str, topic: str) -> Finding | None:
    """Return which configuration saves memory at which speed, and what a second one found."""
    points = _points(tree, study, _MEMORY)
    if points is None:
        return None
    figure = QUESTIONS[_MEMORY]
    sentences = figure.sentences(points)
    second, saved = tables_of(tree, study).second, figure.facts(points).get("saved")
    again = second and saved and saving(figure.points(second), saved["least"], saved["most"])
    return Finding(
        asks=question,
        page=_page_of(study),
        text=escape(" ".join(sentences[:3])),
        repeated=f"{percent(again[0])} at {again[1]:.2f}" if again else NOT_TRIED,
        holds=_holds(tree, study, points),
        starts=_starts(tree, study, points["n"]),
        topic=topic,
        short=escape(sentences[0]),
    )


def _batches(tree: Tree, question: str, study: str) -> Finding | None:
    """Return the accuracy with the smallest and the largest batch, by way to learn."""
    points = _points(tree, study, _BATCHES)
    if points is None:
        return None
    facts = QUESTIONS[_BATCHES].facts(points)
    if not facts.get("both"):
        return None
    own = points[points["evaluation"] == RUNNING].set_index(["label", "global_batch_size"])["value"]
    sizes = facts["first"], facts["batch"]
    texts = [
        "{} {:.1f} and {:.1f} %".format(label, *(100 * own[label, size] for size in sizes))
        for label in (row["label"] for row in facts["both"])
    ]
    return Finding(
        asks=question,
        page=_page_of(study),
        text=escape(f"Top-1 accuracy at batch {sizes[0]} and {sizes[1]}: {'; '.join(texts)}."),
        repeated=NOT_TRIED,
        holds=_holds(tree, study, points),
        starts=_counted(points["n"]),
    )


def _page_of(study: str) -> str:
    return f"figures/{study}/{PAGE}"


def _holds(tree: Tree, study: str, points: pd.DataFrame) -> str:
    """Return settings and hardware of the runs behind some points."""
    runs = read_table(tree.tables / f"{study}.csv")
    settings = "emulated nodes" if is_emulated(runs).any() else shared_settings(runs)
    return joined(settings, *_machines(points.loc[points["n"] > 0, "hardware"]))


def _machines(hardware: "pd.Series[str]") -> list[str]:
    return [escape(one.removesuffix(", no GPU")) for one in hardware.dropna().unique()]


def _counted(numbers: "pd.Series[int]") -> str:
    return captions.starts(numbers[numbers > 0], "")


def _starts(tree: Tree, study: str, numbers: "pd.Series[int]") -> str:
    """Return how many starts a finding is from, and how long these were measured."""
    counts = _counted(numbers)
    runs = read_table(tree.tables / f"{study}.csv")
    seconds = (runs["train_epochs_warm"] * runs["runtime_warm_epoch_s"])[runs["work"] == "train"]
    known = seconds[seconds > 0]
    return f"{counts} of {captions.span(known, '{:.0f}')} s" if len(known) else counts


def _confirmed(rows: pd.DataFrame) -> str:
    """Return what a second measurement says of some ratios to the baseline."""
    if rows["again_decision"].isna().all():
        return NOT_TRIED
    found = outcomes(rows)
    same = found.eq(CONFIRMED).fillna(False)
    if same.all():
        return "yes"
    if len(rows) == 1:
        return f"tried: {_again(rows.iloc[0])}"
    others = [f"{row['short']} {_again(row)}" for row in rows[~same].to_dict("records")]
    return f"{int(same.sum())} of {len(rows)}; the others: {'; '.join(others)}"


def _again(row: Any) -> str:
    return f"{Estimate.of(row, 'again_ratio'):.2f}, {captions.word(row, 'again_')}"


def _weights(tree: Tree) -> Finding | None:
    """Return in how many groups of runs the strategies end with the same weights."""
    groups = agreement.groups(completed(tree))
    sure = [one for one in groups if one.promised]
    if not sure:
        return None
    torch = [one for one in groups if one.records[0].spec.framework == "torch"]
    free = [one for one in torch if not one.promised]
    others = f"; elsewhere in {sum(one.agrees for one in free)} of {len(free)}" if free else ""
    return Finding(
        asks="Do the strategies compute the same?",
        page="docs/explanation/fairness.md#same-weights",
        text=f"Final weights are identical in {sum(one.agrees for one in sure)} of {len(sure)} "
        f"groups of runs that differ in the strategy alone, with 1 or 2 ranks on CPUs{others}.",
        repeated=f"{len(sure)} groups",
        holds="PyTorch; elsewhere: GPUs, 4 ranks on CPUs",
    )


def completed(tree: Tree) -> list[RunRecord]:
    """Return the records of the measured runs of all studies, as planned last, that completed."""
    runs = (read_record(run) for name in tree.studies() for run in study_folders(name, tree))
    return [one for one in runs if one.status == "completed" and not one.spec.simulated]


def _prediction(tree: Tree) -> Finding | None:
    """Return how well communication is calculated, on emulated nodes and on the paper's GPUs."""
    if emulated.STUDY not in tree.studies():
        return None
    steps = emulated.validate(tree)
    errors = [100 * abs(one.error) for one in steps]
    sizes = [one.nodes for one in steps]
    gpus = emulated.of_the_paper()
    return Finding(
        asks="Can a formula predict communication?",
        page="docs/explanation/scaling-model.md#validation",
        text=f"Steps on {min(sizes)} to {max(sizes)} emulated nodes, from measured links: "
        f"median error {np.median(errors):.1f} %, at most {max(errors):.1f} %. On the paper's GPUs "
        f"a step loses {1000 * gpus.lost_s:.1f} ms, of which it explains "
        f"{1000 * gpus.exposed_s:.1f} ms.",
        repeated=f"{len(steps)} settings",
        holds="rings over TCP, not NCCL",
    )


def _repetition(tree: Tree) -> Finding | None:
    """Return how many ratios that were measured twice agree, and are decided alike."""
    tables = [read_points(path) for path in sorted(tree.figures.glob("*/comparison.csv"))]
    twice = [(table, found) for table in tables if (found := confirmation(table))]
    if not twice:
        return None
    compared, agree, decided, confirmed, otherwise = (
        sum(getattr(found, name) for _, found in twice)
        for name in ("compared", "agree", "decided", "confirmed", "otherwise")
    )
    text = (
        f"Of {plural(compared, 'ratio')} measured twice, {agree} agree. Of {decided} decided ones, "
        f"{confirmed} are confirmed and {otherwise} are decided the other way."
    )
    hardware = pd.concat([table["hardware"] for table, _ in twice])
    return Finding(
        asks="Do the ratios repeat?",
        page="docs/results/reproducibility.md",
        text=text,
        repeated="",
        holds=joined(f"{len(twice)} studies", *_machines(hardware)),
        topic="Repetition",
        short=text,
    )


def _paper(against: str, here: str) -> Finding:
    """Return how many statements of Aach et al. are contradicted, and asked here."""
    return Finding(
        asks="Does the paper hold?",
        page="docs/results/statements.md",
        text=f"{against} {here}",
        repeated="",
        holds="its text and tables",
        topic="Aach et al. (2023)",
        short=against,
    )
