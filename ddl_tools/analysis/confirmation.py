"""Whether a second measurement of a study confirms the first one."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddl_tools.analysis import estimates

_CONFIGURATION = ["label", "world_size"]
_RATIO = ["ratio", "ratio_low", "ratio_high"]


@dataclass(frozen=True)
class Confirmation:
    """What a second measurement says of the ratios to the baseline.

    Two ratios agree if they differ by no more than their 95 % intervals together: half the width of
    each, added in squares, on the logarithmic scale. A ratio is decided if `estimates.decision`
    says faster, slower or equivalent, and confirmed if the second measurement says the same.
    """

    compared: int
    agree: int
    decided: int
    confirmed: int
    otherwise: int

    @property
    def undecided(self) -> int:
        """Return how many decided ratios the second measurement leaves open."""
        return self.decided - self.confirmed - self.otherwise

    @property
    def sentence(self) -> str:
        """Return the counts in words."""
        return (
            f"{self.agree} of {self.compared} ratios agree within their intervals; "
            f"{self.confirmed} of {self.decided} decided ratios are confirmed, "
            f"{self.undecided} inconclusive in the second measurement, "
            f"{self.otherwise} decided otherwise"
        )


def beside(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return the points of a comparison with those of a second one beside them.

    Added columns: again_ratio with its interval, again_decision, and whether the intervals of both
    ratios are disjoint.
    """
    other = second[[*_CONFIGURATION, *_RATIO, "decision"]]
    other = other.rename(columns={name: f"again_{name}" for name in [*_RATIO, "decision"]})
    both = first.merge(other, how="left", on=_CONFIGURATION)
    below = both["again_ratio_high"] < both["ratio_low"]
    return both.assign(disjoint=below | (both["again_ratio_low"] > both["ratio_high"]))


def confirmation(both: pd.DataFrame) -> Confirmation | None:
    """Compare the ratios of points from `beside`; None if one of the two has no intervals."""
    known = _with_intervals(both)
    if known.empty:
        return None
    decided = known["decision"] != estimates.INCONCLUSIVE
    same = known["decision"] == known["again_decision"]
    otherwise = decided & ~same & (known["again_decision"] != estimates.INCONCLUSIVE)
    counts = (int(found.sum()) for found in (_agree(known), decided, decided & same, otherwise))
    return Confirmation(len(known), *counts)


def doubtful(both: pd.DataFrame) -> pd.DataFrame:
    """Return the points whose two ratios do not agree, or whose decision is not confirmed."""
    known = _with_intervals(both)
    if known.empty:
        return known
    decided = known["decision"] != estimates.INCONCLUSIVE
    changed = decided & (known["decision"] != known["again_decision"])
    return known[changed | ~_agree(known)]


def _with_intervals(both: pd.DataFrame) -> pd.DataFrame:
    """Return the points of which both measurements have an interval."""
    if "again_decision" not in both:
        return both.iloc[:0]
    return both.dropna(subset=["decision", "again_decision"])


def _agree(known: pd.DataFrame) -> "pd.Series[bool]":
    gap = np.log(known["ratio"] / known["again_ratio"]).abs()
    halves = (
        np.log(known[f"{stem}ratio_high"] / known[f"{stem}ratio_low"]) / 2
        for stem in ("", "again_")
    )
    return gap <= np.hypot(*halves)
