"""Whether a second measurement of a study confirms the first one."""

from dataclasses import dataclass

import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.analysis.figures import comparison
from ddl_tools.analysis.tables import runs_table, windows_table
from ddl_tools.records.paths import Tree

_CONFIGURATION = ["label", "world_size"]


@dataclass(frozen=True)
class Confirmation:
    """What a second measurement says of the ratios to the baseline that the first one decides.

    A ratio is decided if `estimates.decision` says faster, slower or equivalent, and confirmed if
    the second measurement says the same. Neither `confirmed` nor `otherwise`: undecided there.
    """

    compared: int
    decided: int
    confirmed: int
    otherwise: int

    @property
    def sentence(self) -> str:
        """Return the counts in words."""
        undecided = self.decided - self.confirmed - self.otherwise
        return (
            f"{self.confirmed} of {self.decided} decided ratios are confirmed, {undecided} are "
            f"undecided in the second measurement, {self.otherwise} decided otherwise"
        )


def confirmation(study: str, first: Tree, second: Tree) -> Confirmation | None:
    """Compare two measurements of a study; None if one of them has no ratios."""
    one, other = (_decisions(study, tree) for tree in (first, second))
    both = one.merge(other, on=_CONFIGURATION, suffixes=("", "_second"))
    if both.empty:
        return None
    decided = both[both["decision"] != estimates.CANNOT_SAY]
    same = decided["decision"] == decided["decision_second"]
    otherwise = ~same & (decided["decision_second"] != estimates.CANNOT_SAY)
    return Confirmation(len(both), len(decided), int(same.sum()), int(otherwise.sum()))


def _decisions(study: str, tree: Tree) -> pd.DataFrame:
    runs, windows = runs_table(tree.runs, studies=[study]), windows_table(tree.runs, [study])
    points = comparison.points(runs, windows)
    return points.loc[points["decision"].notna(), [*_CONFIGURATION, "decision"]]
