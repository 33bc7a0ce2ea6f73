"""The statements of three papers, each with a verdict from the published runs.

``data/paper/claims.csv`` lists the comparisons that each statement makes, all of them ratios:

==========  =============================  ====================================
relation    confirmed by an interval       refuted by an interval
==========  =============================  ====================================
greater     above 1                        below 1
similar     within the margin              outside the margin
lower       above the stated number        below it
upper       below the stated number        above it
value       within the margin of it        outside that margin
==========  =============================  ====================================

A statement is supported if every comparison confirms it (an intersection-union test, which needs no
adjustment). It is contradicted if any comparison refutes it: the p are doubled for the two
directions and adjusted after Holm as one family.

Statements of Aach et al. are tested by runs under the paper's conditions alone (`SPEED` and
`LEARNING` of `evidence`). The same comparison at other sizes or on other hardware stands beside it
(``here``) and is no evidence. Rankings of the two other papers are tested wherever they were
measured.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.analysis import tables as records
from ddl_tools.analysis.claim_comparisons import SYMBOLS, Comparison, Part, comparisons
from ddl_tools.analysis.estimates import ALPHA, MARGIN, POINT, Estimate
from ddl_tools.analysis.evidence import (
    ACCURACIES,
    SHARES,
    Evidence,
    library_evidence,
    paper_evidence,
)
from ddl_tools.analysis.paper import AACH, BASE_WORLD_SIZE, read_paper
from ddl_tools.labels import plural
from ddl_tools.records.paths import Tree
from ddl_tools.scaling.paper import covers

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
DECIDED = (SUPPORTED, CONTRADICTED)
NOT_TESTABLE = "not testable here"
ELSEWHERE = {SUPPORTED: "confirmed here", CONTRADICTED: "contradicted here"}  # other papers' words
COLUMNS = ["paper", "statement", "kind", "claim", "place", "verdict", "why", "here"]
SEEN = "related"
_TESTABLE = {"throughput", *SYMBOLS, *SHARES, *ACCURACIES}


def of_records(tree: Tree) -> pd.DataFrame:
    """Return the statements of Aach et al. judged by the records in `tree`, see `judged`."""
    claims = read_paper().claims
    runs, windows = records.runs_table(tree), records.windows_table(tree)
    return judged(runs, claims[claims["paper"] == AACH], windows, records.profiles_table(tree))


def judged(
    runs: pd.DataFrame,
    claims: pd.DataFrame,
    windows: pd.DataFrame | None = None,
    profiles: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return each statement in `claims` (claims.csv) with its verdict: `COLUMNS`.

    Without windows nothing is paired but repeats of accuracies, and without profiles nothing is
    known of kernel time. ``why`` explains the verdict; ``here`` is what the records show of the
    comparison at whatever size and hardware, empty where they show nothing.
    """
    runs = records.not_emulated(records.whole(runs))
    torch = runs[runs["framework"] == "torch"]  # the paper's frameworks are PyTorch's
    rows = []
    for paper, statements in claims.groupby("paper", sort=False):
        own = paper == AACH
        found = paper_evidence(torch, windows, profiles) if own else library_evidence(runs, windows)
        for _, table in statements.astype(object).fillna("").groupby("statement", sort=False):
            row = table.iloc[0]
            judge = _possible(row, torch) if row["quantity"] == "possible" else _judge(table, found)
            rows.append(row.to_dict() | judge)
    return pd.DataFrame(rows, columns=COLUMNS).astype("string")


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return how many statements of a kind have which verdict, and of how many anything is seen."""
    counts = pd.crosstab(table["kind"], table["verdict"]).reindex(table["kind"].unique())
    counts = counts.reindex(columns=[*DECIDED, UNDECIDED], fill_value=0)
    seen = table["here"].ne("").groupby(table["kind"]).sum()
    return counts.assign(**{SEEN: seen}).rename_axis(columns=None)


def answer(table: pd.DataFrame) -> list[str]:
    """Return how many judged statements have which verdict, in sentences."""
    counts = summary(table).drop("quoted", errors="ignore").sum()
    quoted = int((table["kind"] == "quoted").sum())
    verdicts = ", ".join(f"{counts[word]} {word}" for word in (*DECIDED, UNDECIDED))
    return [
        f"{len(table) - quoted} statements of the paper: {verdicts}.",
        f"{counts[SEEN]} have related measurements at other sizes or on other hardware, which do "
        "not count as evidence.",
        f"{quoted} more are quoted from other sources, and not tested.",
    ]


def _judge(table: pd.DataFrame, evidence: dict[str, Evidence]) -> dict[str, str]:
    row = table.iloc[0]
    tested = table["quantity"].isin(_TESTABLE) & (table["relation"] != "")
    parts = list(table[tested].itertuples(index=False))
    own, margin = row["paper"] == AACH, math.expm1(POINT) if row["kind"] == "accuracy" else MARGIN
    everywhere = [one for part in parts for one in comparisons(part, evidence, strict=False)]
    here = {"here": _here(everywhere, margin)}
    if not own:
        word, why = verdict(parts, everywhere, margin, bool(row["open"]), row["reason"])
        word = NOT_TESTABLE if row["reason"] else ELSEWHERE.get(word, word)
        return here | {"verdict": word, "why": row["reason"] or why}
    on_terms = [one for part in parts for one in comparisons(part, evidence, strict=True)]
    word, why = verdict(parts, on_terms, margin, bool(row["open"]), row["reason"])
    if not on_terms:
        missing = "not measured" if parts else ""
        word, why = UNDECIDED, "; ".join(filter(None, [missing, row["plan"], row["reason"]]))
    return here | {"verdict": word, "why": why}


def _possible(row: pd.Series, runs: pd.DataFrame) -> dict[str, str]:
    """Describe the runs with both; "cannot be used together" is about the releases of 2022."""
    loaders = runs["loader"].map(lambda name: covers(row["loader"], name)).astype(bool)
    both = runs[loaders & (runs["strategy"] == row["strategy"]) & (runs["work"] == "train")]
    done = both[both["status"] == "completed"]
    if done.empty:
        return {"verdict": UNDECIDED, "why": "no completed run with both", "here": ""}
    releases = done["communication"].dropna().str.split(";").str[0]
    devices = np.where(done["device_used"] == "cpu", "the CPU", "a GPU")
    how = (done["study"], releases[releases.str.startswith(row["strategy"])], devices)
    parts = ", ".join(name for names in how for name in sorted(set(names)))
    here = f"{plural(len(done), 'completed run')} with both ({parts})"
    why = "it is about the releases of 2022, and was not measured with them"
    return {"verdict": UNDECIDED, "why": why, "here": here}


# --- from estimates to a verdict ---


def verdict(
    parts: Sequence[Part],
    seen: Sequence[Comparison],
    margin: float = MARGIN,
    open_reading: bool = False,
    reason: str = "",
) -> tuple[str, str]:
    """Return the verdict on a statement and why, from all its comparisons.

    Supported: every part is confirmed wherever it was measured, and was measured at both ends of
    its range. Contradicted: a comparison is refuted; with an open reading (the paper names no
    strategy or model) all parts must be. `reason` says what of the statement cannot be tested.
    """
    ranges = [_claimed(one.part, margin) for one in seen]
    p = [_p_outside(one.estimate, *ends) for one, ends in zip(seen, ranges, strict=True)]
    against = [one for one, p in zip(seen, estimates.holm(p), strict=True) if p <= ALPHA]
    if against and (not open_reading or {one.part for one in against} == set(parts)):
        return CONTRADICTED, "; ".join(f"{one.place}: {one.text}" for one in against)
    if missing := next(filter(None, (_missing(part, seen) for part in parts)), ""):
        return UNDECIDED, missing
    confirmed = sum(low < one.estimate.low and one.estimate.high < high
                    for one, (low, high) in zip(seen, ranges, strict=True))  # fmt: skip
    if confirmed == len(seen) and reason:
        return UNDECIDED, f"only in part testable: {reason}"
    decided = f"{confirmed} of {len(seen)} comparisons decided so"
    return (SUPPORTED if confirmed == len(seen) else UNDECIDED), decided


def _claimed(part: Part, margin: float) -> tuple[float, float]:
    """Return the ratios between which a comparison is as claimed."""
    if part.relation in ("greater", "lower"):
        return 1.0, math.inf
    return (0.0, 1.0) if part.relation == "upper" else (1 / (1 + margin), 1 + margin)


def _p_outside(ratio: Estimate, low: float, high: float) -> float:
    """Return the p against "the ratio lies between these", doubled for the two directions."""
    below = estimates.p_less(ratio, low) if low else 1.0
    return min(1.0, 2 * below, 2 * estimates.p_greater(ratio, high))


def _missing(part: Part, seen: Sequence[Comparison]) -> str:
    """Say where a part was not measured, of both ends of its range; nothing if at both."""
    own = [one.sizes for one in seen if one.part == part]
    sizes = frozenset[int]().union(*own)
    ends = {part.world_size_min, part.world_size_max} - {""}
    needed = ends if part.compared != "global_batch_size" else set()
    if needed and part.quantity in ("parallel_efficiency", "speedup"):
        needed = needed | {BASE_WORLD_SIZE}
    if own and needed <= sizes:
        return ""
    at = f"measured at {', '.join(map(str, sorted(sizes)))}" if sizes else "not measured"
    if ends:
        return f"the claim is about {' to '.join(map(str, sorted(ends)))} GPUs, {at}"
    return f"{at} with several numbers of ranks: {part.right}"


def _here(seen: list[Comparison], margin: float) -> str:
    """Return the comparisons by place, with the decision on two that are compared."""
    places: dict[str, list[str]] = {}
    for (place, text), one in {(one.place, one.text): one for one in seen}.items():
        known = one.part.compared and one.estimate.n > 1
        word = f", {estimates.decision(one.estimate, margin)}" if known else ""
        places.setdefault(place, []).append(text + word)
    return "; ".join(f"{place}: {'; '.join(shown)}" for place, shown in places.items())
