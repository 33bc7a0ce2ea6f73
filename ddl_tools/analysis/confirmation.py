"""Whether a second measurement of a study confirms the first one."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.names import plural

_CONFIGURATION = ["label", "world_size"]
_RATIO = ["ratio", "ratio_low", "ratio_high"]


CONFIRMED, SAME_DIRECTION = "confirmed", "same direction"
UNDECIDED, OTHERWISE = "inconclusive again", "decided otherwise"


@dataclass(frozen=True)
class Confirmation:
    """What a second measurement says of the ratios to the baseline: counts, see `outcomes`.

    Two ratios agree if they differ by no more than their 95 % intervals together: half the width of
    each, added in squares, on the logarithmic scale.
    """

    compared: int
    agree: int
    decided: int
    confirmed: int
    same_direction: int
    undecided: int
    otherwise: int

    @property
    def agreement(self) -> str:
        """How many ratios agree."""
        verb = "agrees" if self.agree == 1 else "agree"
        return f"{self.agree} of {plural(self.compared, 'ratio')} {verb}"

    def confirmations(self, what: str) -> str:
        """Return how many decided ratios are confirmed; `what` is their name in the sentence."""
        verb = "is" if self.confirmed == 1 else "are"
        return f"{self.confirmed} of {plural(self.decided, f'decided {what}')} {verb} confirmed"

    @property
    def sentence(self) -> str:
        """Return the counts in words."""
        return (
            f"{self.agreement} within their intervals; {self.confirmations('ratio')}, "
            f"{self.same_direction} in the same direction only, "
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


def outcomes(both: pd.DataFrame) -> "pd.Series[str]":
    """Return what a second measurement says of each ratio of points from `beside`.

    A ratio is decided if `estimates.decision` says faster, slower or equivalent. It is confirmed if
    the second measurement decides the same and the two ratios agree, and has the same direction if
    they do not. Nothing of a ratio that is not decided, or has no interval in one of the two.
    """
    known = _with_intervals(both)
    if known.empty:
        return pd.Series(None, both.index, dtype="string")
    known = known[known["decision"] != estimates.INCONCLUSIVE]
    again = known["again_decision"]
    found = pd.Series(OTHERWISE, known.index, dtype="string")
    found = found.mask(again == estimates.INCONCLUSIVE, UNDECIDED)
    found = found.mask(again == known["decision"], SAME_DIRECTION)
    found = found.mask((again == known["decision"]) & agree(known), CONFIRMED)
    return found.reindex(both.index)


def agree(both: pd.DataFrame) -> "pd.Series[bool]":
    """Say which points from `beside` have two ratios that agree; without a second one, no."""
    known = _with_intervals(both)
    if known.empty:
        return pd.Series(False, both.index)
    gap = np.log(known["ratio"] / known["again_ratio"]).abs()
    halves = (
        np.log(known[f"{stem}ratio_high"] / known[f"{stem}ratio_low"]) / 2
        for stem in ("", "again_")
    )
    return (gap <= np.hypot(*halves)).reindex(both.index, fill_value=False)


def confirmation(both: pd.DataFrame) -> Confirmation | None:
    """Count the `outcomes` of points; None if one of the two measurements has no intervals."""
    known = _with_intervals(both)
    if known.empty:
        return None
    found = outcomes(known).dropna()
    counts = (
        int((found == one).sum()) for one in (CONFIRMED, SAME_DIRECTION, UNDECIDED, OTHERWISE)
    )
    return Confirmation(len(known), int(agree(known).sum()), len(found), *counts)


def doubtful(both: pd.DataFrame) -> pd.DataFrame:
    """Return the points whose two ratios do not agree, or whose decision is not confirmed."""
    known = _with_intervals(both)
    if known.empty:
        return known
    return known[outcomes(known).ne(CONFIRMED).fillna(False) | ~agree(known)]


def _with_intervals(both: pd.DataFrame) -> pd.DataFrame:
    """Return the points of which both measurements have an interval."""
    if "again_decision" not in both:
        return both.iloc[:0]
    return both.dropna(subset=["decision", "again_decision"])
