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
            f"{self.undecided} are undecided in the second measurement, "
            f"{self.otherwise} decided otherwise"
        )


def confirmation(first: pd.DataFrame, second: pd.DataFrame) -> Confirmation | None:
    """Compare the points of two comparisons of a study; None if one of them has no ratios."""
    both = beside(first, second).dropna(subset=["decision", "decision_second"])
    if both.empty:
        return None
    gap = np.log(both["ratio"] / both["ratio_second"]).abs()
    agree = gap <= np.hypot(
        *(np.log(both[f"ratio_high{end}"] / both[f"ratio_low{end}"]) / 2 for end in ("", "_second"))
    )
    decided = both[both["decision"] != estimates.INCONCLUSIVE]
    same = decided["decision"] == decided["decision_second"]
    otherwise = ~same & (decided["decision_second"] != estimates.INCONCLUSIVE)
    counts = (int(found.sum()) for found in (agree, decided["decision"].notna(), same, otherwise))
    return Confirmation(len(both), *counts)


def beside(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return the points of a comparison with ratio and decision of the second one beside them."""
    other = second[[*_CONFIGURATION, *_RATIO, "decision"]]
    return first.merge(other, how="left", on=_CONFIGURATION, suffixes=("", "_second"))
