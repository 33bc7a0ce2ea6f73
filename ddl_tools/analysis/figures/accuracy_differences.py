"""Differences of accuracy with intervals: over the batch, and between ways to learn."""

import math
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.analysis.estimates import POINT
from ddl_tools.analysis.figures.accuracy_runs import EVALUATIONS, RUNNING, numbers
from ddl_tools.analysis.plot import style
from ddl_tools.estimate import Estimate


def lost(points: pd.DataFrame) -> pd.DataFrame:
    """Return how much V each way to learn loses from its smallest to its largest batch.

    One row per panel and way to learn, the smallest loss first in each study: the difference of
    the means with its 95 % interval. Batches of which all runs were lost do not count: ``to_batch``
    is the last one that counts. decision is that of `differences`.
    """
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    names = ["study", "panel", "label"]
    rows = []
    for name, own in ours.sort_values("global_batch_size").groupby(names):
        first, last = own.iloc[[0, -1]].to_dict("records")
        gap = _gap(first, last)
        sizes = (one["global_batch_size"] for one in (first, last))
        rows.append((*name, *sizes, gap.n, *gap.log().columns().values(), _decision(gap)))
    names += ["from_batch", "to_batch", "n", *_columns("lost"), "decision"]
    table = pd.DataFrame(rows, columns=names)
    return table.sort_values(["study", "lost"], ignore_index=True)


# The paper's order at its largest batch: exponential is far ahead, cosine last (O20).
FIRST, LAST = "exponential", "cosine"


def differences(points: pd.DataFrame) -> pd.DataFrame:
    """Return by how much V of SGD differs from its cosine schedule, at each batch of a study.

    The difference of the means with Welch's 95 % interval: runs of one seed share too little to be
    pairs, and a lost run would take another one with it. p is two-sided. decision is what the
    interval says (`estimates.decision`): accuracies are equivalent within one percentage point, and
    inconclusive with less than `LEAST` values of one of the two, the smaller number being n. A row
    is a study, an evaluation, a batch and a label of SGD or of another optimiser.
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
    return estimates.decision(gap, math.expm1(POINT))


def _gap(one: dict[str, Any], other: dict[str, Any]) -> Estimate:
    """Return e to the difference of the means of V of two rows."""
    above, below = (np.exp(numbers(row["values"])) for row in (one, other))
    return estimates.unpaired_ratio(above, below)


def answers(points: pd.DataFrame) -> dict[str, Any]:
    """Return what large batches cost, from which one on, and which ways differ at the largest.

    Of each way to learn, from ``first`` to ``batch``: ``costs``, with the batch from which on it is
    conclusively worse; ``both`` are those that have an accuracy with both batches, the least loss
    first. ``different`` are the differences to SGD's cosine schedule, see `differences`, and
    ``ahead`` those of the schedule that the paper has first, with several evaluations or one batch.
    """
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    if ours.empty:
        return {"learned": False}
    first, batch = ours["global_batch_size"].min(), ours["global_batch_size"].max()
    costs = lost(points).merge(ours[["panel", "evaluation"]].drop_duplicates())
    costs = _in_points(costs[costs["from_batch"] == first], "lost")
    lines = dict(iter(ours.groupby(["panel", "label"])))
    worse = [_worse_from(lines[name]) for name in zip(costs["panel"], costs["label"], strict=True)]
    costs["worse_from"], costs["worse_by"] = zip(*worse, strict=True) if worse else ([], [])
    table = differences(points)
    table = _in_points(table[table["global_batch_size"] == batch], "difference")
    decided = table["decision"].isin((estimates.GREATER, estimates.LESS))
    both = costs[(costs["to_batch"] == batch) & (costs["evaluation"] == RUNNING)]
    if first == batch:
        both = both.iloc[:0]
    ahead = table[table["label"] == style.way_name("sgd", FIRST)].drop_duplicates("evaluation")
    order = ahead["evaluation"].map([*EVALUATIONS].index)
    return {
        "learned": True,
        "first": first,
        "batch": batch,
        "base": style.way_name("sgd", LAST),
        "costs": costs.to_dict("records"),
        "both": both.to_dict("records"),
        "ends": both.iloc[[0, -1]].drop_duplicates("label").to_dict("records") if len(both) else [],
        "ahead": ahead.loc[order.sort_values().index].to_dict("records")
        if first == batch or len(ahead) > 1
        else [],
        "different": [
            rows.to_dict("records") for _, rows in table.groupby(["evaluation", "panel"])
        ],
        "others": " or ".join(sorted({*table.loc[~decided, "decision"]})) or estimates.INCONCLUSIVE,
    }


def _in_points(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return shares of a table in percentage points."""
    return table.assign(**{column: 100 * table[column] for column in _columns(name)})


def _worse_from(line: pd.DataFrame) -> tuple[int, str]:
    """Return the batch from which on V is conclusively below that of the smallest, and the loss.

    0 where there is none.
    """
    base, *larger = line.sort_values("global_batch_size").to_dict("records")
    gaps = ((row["global_batch_size"], _gap(base, row)) for row in reversed(larger))
    worse = list(takewhile(lambda at: _decision(at[1]) == estimates.GREATER, gaps))
    if not worse:
        return 0, ""
    batch, gap = worse[-1]
    # Three digits, and not decimals: an end just above 0 must not read as 0.
    return batch, str(gap.log().times(100))
