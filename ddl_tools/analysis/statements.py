"""Statements of the papers, beside ratios of studies that ask the same at a small size.

``data/paper/measured_here.csv`` names the rows of figures that answer a statement, and the
direction that the paper claims. Ratio, interval and decision are those of the figure; none is from
the paper's hardware. A direction is no test of a stated number.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.figures.accuracy_differences import LAST, differences, lost
from ddl_tools.analysis.figures.accuracy_runs import RUNNING
from ddl_tools.analysis.paper import AACH, Paper, in_table_2
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.redraw import tables_of
from ddl_tools.analysis.tables import runs_table, windows_table
from ddl_tools.estimate import Estimate, three_digits
from ddl_tools.names import plural
from ddl_tools.records.paths import Tree

SAME, OTHER, INCONCLUSIVE = "same direction here", "other direction here", "inconclusive here"
NOT_TESTED = "not tested"
EXCEPTIONS = 0.2  # of the pairs of a statement: with more of them, it is contradicted
_ID = ["paper", "statement"]
_ROW = ["study", "figure", "row", "quantity"]
_RATIO = ["row", "quantity", "ratio", "decision", "hardware"]


def compared(tree: Tree, paper: Paper) -> pd.DataFrame:
    """Return the ratios in `tree` that are about a statement, each with its ``result``.

    The columns are those of ``measured_here``, the ratio in words with its interval, and the
    hardware.
    """
    wanted = paper.measured_here
    asked = wanted[["study", "figure"]].drop_duplicates().itertuples(index=False)
    found = [_ratios(tree, *one) for one in asked if one.study in tree.studies()]
    ratios = pd.concat(found) if found else pd.DataFrame(columns=[*_ROW, *_RATIO[2:]])
    both = wanted.merge(ratios, on=_ROW)
    same = both["decision"] == both["direction"]
    open_ = both["decision"].isna() | (both["decision"] == estimates.INCONCLUSIVE)
    return both.assign(result=np.select([open_, same], [INCONCLUSIVE, SAME], OTHER))


def listed(paper: Paper, found: pd.DataFrame) -> pd.DataFrame:
    """Return all statements of the papers, one a row; `found` is from `compared`.

    ``here`` says what the ratios show of it, or what a test needs; ``against`` names two numbers of
    the paper itself that contradict each other, or is empty. Contradicted statements come first,
    then those with exceptions and those with ratios, at last those that are not tested.
    """
    texts = found["row"] + ": " + found["ratio"] + " (" + found["study"] + ")"
    parts = texts.groupby([*(found[name] for name in _ID), found["result"]]).agg("; ".join)
    parts = parts.index.get_level_values("result") + ": " + parts
    here = parts.groupby(_ID).agg("; ".join).rename("here")
    table = paper.claims.join(here, on=_ID).join(_against(paper), on=_ID)
    needs = NOT_TESTED + ": needs " + table["needs"]
    plans = " (" + table["plan"].str.replace(";", ", ") + ")"
    table = table.assign(
        here=table["here"].fillna(needs + plans.fillna("")), against=table["against"].fillna("")
    )
    said = [table["here"].str.contains(one, regex=False) for one in (OTHER, SAME, INCONCLUSIVE)]
    mostly = table["mostly"].eq(True)
    order = np.select([~mostly & (table["against"] != ""), mostly, *said], range(5), 5)
    return table.iloc[np.argsort(order, kind="stable")]


def answer(paper: Paper, found: pd.DataFrame) -> list[str]:
    """Return how many statements of Aach et al. are asked here, and in which direction.

    What they quote from others does not count.
    """
    claims = paper.claims[(paper.claims["paper"] == AACH) & (paper.claims["kind"] != "quoted")]
    found = found[found["paper"] == AACH]
    counts = found["result"].value_counts()
    results = ", ".join(
        f"{counts.get(word, 0)} {word.removesuffix(' here')}"
        for word in (SAME, OTHER, INCONCLUSIVE)
    )
    against = claims.join(_against(paper), on=_ID).dropna(subset="against")
    mostly = int(against["mostly"].sum())
    asked = found["statement"].nunique()
    own = found[[*_ROW]].drop_duplicates()
    return [
        f"{len(against) - mostly} of {len(claims)} statements are contradicted by the paper "
        f"itself; {mostly} more hold with exceptions.",
        f"{asked} are asked here at a small size: {plural(len(found), 'comparison')} with "
        f"{plural(len(own), 'result')}, {results}. "
        f"{len(claims) - asked} are not tested: they need its GPUs.",
        *(f"Measured on {one}: not the paper's hardware." for one in found["hardware"].unique()),
    ]


# --- ratios of figures ---


def _ratios(tree: Tree, study: str, figure: str) -> pd.DataFrame:
    """Return the ratios of a figure of a study, in words."""
    found = runs_table(tree, studies=[study]), windows_table(tree, [study])
    points = QUESTIONS[figure].points(tables_of(tree, study, *found))
    rows = _of_speed(points) if figure == "comparison" else _of_accuracy(points)
    return pd.DataFrame(rows, columns=_RATIO).assign(study=study, figure=figure)


def _of_speed(points: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield the ratios to the baseline, and those to the same on the fewest ranks."""
    for row in points.to_dict("records"):
        for name, stem in (("throughput", ""), ("speed-up", "growth_")):
            if text := f"{Estimate.of(row, f'{stem}ratio'):.2f}":
                than = plural(int(row["growth_from"]), "rank") if stem else row["base"]
                decision = row[f"{stem}decision"]
                note = f", {captions.word(row, stem)}" if pd.isna(decision) else ""
                yield row["label"], name, f"{text} times {than}{note}", decision, row["hardware"]


def _of_accuracy(points: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield the differences to SGD's cosine schedule, and the losses from the smallest batch."""
    own = points[points["evaluation"] == RUNNING]
    hardware = own.groupby("study")["hardware"].first()
    for row in differences(own).to_dict("records"):
        name = f"{row['label']}, batch {row['global_batch_size']}"
        points = Estimate.of(row, "difference").times(100)
        text = f"{points:+.1f} points against {style.way_name('sgd', LAST)}"
        yield name, "accuracy", text, row["decision"], hardware[row["study"]]
    for row in lost(own).to_dict("records"):
        name = f"{row['label']}, batch {row['to_batch']}"
        points = Estimate.of(row, "lost").times(100)
        text = f"{points:.1f} points lost from batch {row['from_batch']} on"
        yield name, "accuracy lost", text, row["decision"], hardware[row["study"]]


# --- numbers of the paper itself ---


def _against(paper: Paper) -> pd.DataFrame:
    """Return two numbers of the paper that contradict each other, by paper and statement.

    ``mostly`` says that they are exceptions: most pairs bear the statement out. Statements on
    shares of kernel time are compared with the paper's Table 2.
    """
    numbers = _numbers(paper)
    texts = {
        (row["paper"], row["statement"]): " against ".join(
            numbers[one] for one in row["numbers"].split(";")
        )
        for row in paper.claims.dropna(subset="numbers").to_dict("records")
    }
    mostly: set[tuple[str, str]] = set()
    for name, pairs in in_table_2(paper).items():
        if against := [one for one in pairs if not one.agrees]:
            worst = max(against, key=lambda one: abs(np.log(one.left / one.right)))
            if few := len(against) <= EXCEPTIONS * len(pairs):
                mostly.add((AACH, name))
            texts[AACH, name] = (
                f"{'with exceptions: ' if few else ''}{worst.left:g} % against {worst.right:g} % "
                f"({worst.place}), one of {len(against)} such pairs of {len(pairs)}"
            )
    found = pd.Series(texts, name="against", dtype="string").rename_axis(_ID).to_frame()
    return found.assign(mostly=found.index.isin(mostly))


def _numbers(paper: Paper) -> dict[str, str]:
    """Return the numbers that Aach et al. state, as printed, and those that follow, by their id."""
    stated = pd.concat([paper.efficiency, paper.runtime]).drop_duplicates("statement")
    derived = paper.derived
    signs = derived["bound"].map({"lower": ">", "upper": "<"}).fillna("")
    units = (" " + derived["unit"].replace("1", "")).str.rstrip()
    values = signs + derived["value"].map(three_digits) + units
    texts, names = [*stated["printed"], *values], [*stated["statement"], *derived["statement"]]
    return {name: f"{text} ({name})" for name, text in zip(names, texts, strict=True)}
