"""Whether a second measurement of a study confirms the first one."""

from dataclasses import dataclass

import pandas as pd

from ddl_tools.analysis import estimates

_CONFIGURATION = ["label", "world_size"]


@dataclass(frozen=True)
class Confirmation:
    """What a second measurement says of the ratios to the baseline that the first one decides.

    A ratio is decided if `estimates.decision` says faster, slower or equivalent, and confirmed if
    the second measurement says the same.
    """

    compared: int
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
            f"{self.confirmed} of {self.decided} decided ratios are confirmed, "
            f"{self.undecided} are undecided in the second measurement, "
            f"{self.otherwise} decided otherwise"
        )


def confirmation(first: pd.DataFrame, second: pd.DataFrame) -> Confirmation | None:
    """Compare the points of two comparisons of a study; None if one of them has no ratios."""
    one, other = (
        points.loc[points["decision"].notna(), [*_CONFIGURATION, "decision"]]
        for points in (first, second)
    )
    both = one.merge(other, on=_CONFIGURATION, suffixes=("", "_second"))
    if both.empty:
        return None
    decided = both[both["decision"] != estimates.CANNOT_SAY]
    same = decided["decision"] == decided["decision_second"]
    otherwise = ~same & (decided["decision_second"] != estimates.CANNOT_SAY)
    return Confirmation(len(both), len(decided), int(same.sum()), int(otherwise.sum()))
