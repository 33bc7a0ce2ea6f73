"""From estimates to a verdict on a statement: supported, contradicted, or "cannot say".

Each comparison of a statement (of a pair, at a number of GPUs) can confirm or refute it:

==========  ==============================  =====================================
test        confirmed                       refuted
==========  ==============================  =====================================
greater     the ratio surely is above 1     it surely is below 1
similar     equivalent within the margin    it surely lies outside the margin
lower       surely above what is stated     surely below it
upper       surely below what is stated     surely above it
value       equivalent to what is stated    it surely lies outside the margin of it
==========  ==============================  =====================================

A statement is supported if every comparison confirms it, by the interval that is shown: all must,
so none gets a second chance. It is contradicted if any one refutes it. There many comparisons are
many chances, so the p are adjusted after Holm as one family. They are doubled, as both directions
are looked at: with all arms equal, a claim that one is greater is refuted with a probability of
alpha at most, however many sizes it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ddl_core.analysis import estimates
from ddl_core.analysis.claims.statements import Part, Statement, sizes_needed
from ddl_core.analysis.estimates import ALPHA, MARGIN, Estimate

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", estimates.CANNOT_SAY


@dataclass(frozen=True)
class Seen:
    """One comparison in the records: the ratio of two arms, or of an arm to what is stated.

    `sizes` are the numbers of GPUs it rests on (accuracy: of 64 images each), `place` says where it
    was measured, and `text` what was compared, with the result.
    """

    part: Part
    estimate: Estimate
    sizes: frozenset[int]
    place: str
    text: str


def confirms(seen: Seen, margin: float = MARGIN) -> bool:
    """Say whether the interval of a comparison is as claimed."""
    ratio, test = seen.estimate, seen.part.test
    if test in ("greater", "lower"):
        return ratio.low > 1
    if test == "upper":
        return ratio.high < 1
    return estimates.decision(ratio, margin) == estimates.EQUIVALENT


def refutes(seen: Seen, margin: float = MARGIN) -> float:
    """Return the p against "the comparison is as claimed"."""
    ratio, test = seen.estimate, seen.part.test
    if test in ("greater", "lower"):
        p = estimates.p_less(ratio)
    elif test == "upper":
        p = estimates.p_greater(ratio)
    else:
        above = estimates.p_greater(ratio, 1 + margin)
        p = min(above, estimates.p_less(ratio, 1 / (1 + margin)))
    return min(1.0, 2 * p)


def verdict(
    statement: Statement, seen: Sequence[Seen], margin: float = MARGIN, alpha: float = ALPHA
) -> tuple[str, str]:
    """Return the verdict on `statement` and why, from all its comparisons on the paper's terms.

    Supported: every part is confirmed wherever it was measured, and was measured at both ends of
    its range. Contradicted: a comparison is refuted. Where it is open which part is meant, all
    parts must be refuted.
    """
    yes = [confirms(one, margin) for one in seen]
    no = decided([refutes(one, margin) for one in seen], alpha)
    refuted = {one.part for one, sure in zip(seen, no, strict=True) if sure}
    if refuted and (not statement.open_reading or refuted == set(statement.parts)):
        against = [one for one, sure in zip(seen, no, strict=True) if sure]
        return CONTRADICTED, "; ".join(f"{one.place}: {one.text}" for one in against)
    missing = _missing(statement, seen)
    if missing:
        return UNDECIDED, missing
    if not all(yes):
        return UNDECIDED, f"{sum(yes)} of {len(yes)} comparisons decided so"
    if statement.reason:
        return UNDECIDED, f"only in part testable: {statement.reason}"
    return SUPPORTED, f"{len(yes)} of {len(yes)} comparisons decided so"


def decided(p: list[float], alpha: float = ALPHA) -> list[bool]:
    """Say of each of one family whether it is sure, after Holm."""
    return [adjusted <= alpha for adjusted in estimates.holm(p)]


def _missing(statement: Statement, seen: Sequence[Seen]) -> str:
    """Return which ends of the range were not measured; nothing where all were."""
    for part in statement.parts:
        own = [one for one in seen if one.part == part]
        sizes = frozenset[int]().union(*(one.sizes for one in own))
        if not own or sizes_needed(part) - sizes:
            at = f"measured at {_listed(sizes)}" if sizes else "not measured"
            return f"the claim is about {_range(part)}, {at}"
    return ""


def _range(part: Part) -> str:
    return f"{part.low} GPUs" if part.low == part.high else f"{part.low} to {part.high} GPUs"


def _listed(sizes: frozenset[int]) -> str:
    return ", ".join(str(size) for size in sorted(sizes))
