"""Differences of accuracy with intervals: over the batch, and between ways to learn."""

import math
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.analysis.estimates import POINT
from ddl_tools.analysis.figures.accuracy_runs import RUNNING, numbers
from ddl_tools.analysis.plot import captions, style
from ddl_tools.estimate import Estimate


def lost(points: pd.DataFrame) -> pd.DataFrame:
    """Return how much V each way to learn loses from its smallest to its largest batch.

    One row per panel and way to learn, the smallest loss first in each study: the mean difference,
    by seed where possible, with its 95 % interval (n of `LEAST_SHOWN` or more). Batches of which
    all runs were lost do not count: ``to_batch`` is the last one that counts. decision is that of
    `differences`.
    """
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    names = ["study", "panel", "label"]
    rows = []
    for name, own in ours.sort_values("global_batch_size").groupby(names):
        first, last = own.iloc[[0, -1]].to_dict("records")
        gap = _gap(first, last)
        sizes = (one["global_batch_size"] for one in (first, last))
        loss = estimates.shown(gap).log()
        rows.append((*name, *sizes, gap.n, *loss.columns().values(), _decision(gap)))
    names += ["from_batch", "to_batch", "n", *_columns("lost"), "decision"]
    table = pd.DataFrame(rows, columns=names)
    return table.sort_values(["study", "lost"], ignore_index=True)


# The paper's order at its largest batch: exponential is far ahead, cosine last (O20).
FIRST, LAST = "exponential", "cosine"


def differences(points: pd.DataFrame) -> pd.DataFrame:
    """Return by how much V of SGD differs from its cosine schedule, at each batch of a study.

    By seed where possible, with the 95 % interval of the mean difference; p is two-sided. decision
    is what the interval says (`estimates.decision`): accuracies are equivalent within one
    percentage point, and inconclusive with less than `LEAST_SHOWN` values. A row is a study, an
    evaluation, a batch and a label of SGD or of another optimiser.
    """
    rows = []
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    for (study, panel, evaluation, batch), part in ours.groupby(
        ["study", "panel", "evaluation", "global_batch_size"]
    ):
        ways = {row["label"]: row for row in part.to_dict("records")}
        base = ways.pop(style.way_name("sgd", LAST), None)
        if base is None:
            continue
        for label, own in ways.items():
            one = _gap(own, base)
            p = min(1.0, 2 * min(estimates.p_greater(one), estimates.p_less(one)))
            ends = one.log().columns().values()
            rows.append((study, panel, evaluation, batch, label, one.n, *ends, p, _decision(one)))
    names = ["study", "panel", "evaluation", "global_batch_size", "label", "n"]
    return pd.DataFrame(rows, columns=[*names, *_columns("difference"), "p", "decision"])


def _columns(name: str) -> list[str]:
    return list(Estimate(math.nan).columns(name))


def _decision(gap: Estimate) -> str:
    if gap.n < estimates.LEAST_SHOWN:
        return estimates.INCONCLUSIVE
    return estimates.decision(gap, math.expm1(POINT))


def unsure(row: Any) -> str:
    """Return the decision on a difference that the title states; nothing if it is shown."""
    shown = row["decision"] in (estimates.GREATER, estimates.LESS)
    return "" if shown else f" ({row['decision']})"


def _by_seed(row: dict[str, Any]) -> pd.Series:
    seeds, values = (numbers(row[name]) for name in ("repeats", "values"))
    return pd.Series(values, seeds.astype(int))


def _gap(one: dict[str, Any], other: dict[str, Any]) -> Estimate:
    """Return e to the mean difference of V of two rows: in pairs of one seed, else of all runs."""
    above, below = (np.exp(_by_seed(row)) for row in (one, other))
    seeds = above.index.intersection(below.index)
    if seeds.empty:
        return estimates.unpaired_ratio(above, below)
    return estimates.paired_ratio(above[seeds], below[seeds])


def answers(points: pd.DataFrame) -> list[str]:
    """Return what large batches cost, from which one on, and which ways differ at the largest.

    Ways are compared with SGD's cosine schedule, see `differences`.
    """
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    first, batch = ours["global_batch_size"].min(), ours["global_batch_size"].max()
    costs = lost(points).merge(ours[["panel", "evaluation"]].drop_duplicates())
    costs = costs[costs["from_batch"] == first]
    worse = []
    for evaluation, rows in costs.groupby("evaluation"):
        lines = []
        for row in rows.to_dict("records"):
            own = ours[(ours["panel"] == row["panel"]) & (ours["label"] == row["label"])]
            lines.append(f"{row['label']} {_worse_from(own) or 'none'}")
        worse.append(f"with {evaluation} {'; '.join(lines)}")
    costs = costs[(costs["to_batch"] == batch) & (costs["evaluation"] == RUNNING)]
    texts = [f"{row['label']} {_points(row, 'lost'):.1f}" for row in costs.to_dict("records")]
    how = ", ".join(filter(None, ["by seed where possible", captions.counted("n", costs["n"])]))
    return [
        f"Points of accuracy lost from batch {first} to {batch} ({how}): "
        f"{'; '.join(texts) or 'none'}.",
        f"Conclusively worse than batch {first} from this batch on, with the points lost there (by "
        "seed where possible; 95 % intervals, not corrected for several batches): "
        f"{'; '.join(worse)}.",
        *_different(differences(points), batch),
    ]


def _worse_from(line: pd.DataFrame) -> str:
    """Return the batch from which on V is conclusively below that of the smallest, and the loss.

    Nothing where there is none.
    """
    base, *larger = line.sort_values("global_batch_size").to_dict("records")
    gaps = ((row["global_batch_size"], _gap(base, row)) for row in reversed(larger))
    worse = list(takewhile(lambda at: _decision(at[1]) == estimates.GREATER, gaps))
    if not worse:
        return ""
    batch, gap = worse[-1]
    # Three digits, and not decimals: an end just above 0 must not read as 0.
    return f"{batch} ({gap.log().times(100)})"


def _points(row: dict[str, Any], name: str) -> Estimate:
    """Return a share of a row in percentage points."""
    return Estimate.of(row, name).times(100)


def _different(table: pd.DataFrame, batch: int) -> list[str]:
    """Return the sentence on the ways whose difference is decided."""
    parts: list[str] = []
    others: set[str] = set()
    table = table[table["global_batch_size"] == batch]
    for (evaluation, _), part in table.groupby(["evaluation", "panel"]):
        decided = part["decision"].isin((estimates.GREATER, estimates.LESS))
        sure = part[decided]
        others |= set(part.loc[~decided, "decision"])
        ways = [
            f"{row['label']} {_points(row, 'difference'):+.1f} points"
            for row in sure.to_dict("records")
        ]
        parts.append(f"{', '.join(ways) or 'none'} with {evaluation}")
    cosine = style.way_name("sgd", LAST)
    told = f"Conclusively different from {cosine} at batch {batch}: {'; '.join(parts)}"
    rest = " or ".join(sorted(others)) or estimates.INCONCLUSIVE
    return [f"{told}; others are {rest}."] if parts else []
