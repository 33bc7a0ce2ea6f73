"""A value that somebody states beside what was predicted of it from smaller sizes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# What the model is asked for: errors above are misses.
ASKED = {"all_reduce_share": 0.02, "step_s": 0.03, "overhead_s": 0.1}
ASKED_ELSE = 0.05


@dataclass(frozen=True)
class Judged:
    """One held-out value. Shares and efficiencies are fractions, times seconds.

    Attributes
    ----------
    case
        The group that it is counted in.
    series, statement
        What it is a value of, and where it is stated.
    quantity, ranks, bound
        Of which ``stated`` is the value, or a ``lower`` or ``upper`` bound.
    predicted, low, high
        With the 90 % band of a single measurement.
    peer
        A power law through the same points.
    doubt
        Why the stated value itself is in doubt; empty if it is not.
    cause
        The likely cause of a miss of this kind.
    """

    case: str
    series: str
    statement: str
    quantity: str
    ranks: int
    stated: float
    bound: str
    predicted: float
    low: float
    high: float
    peer: float
    doubt: str = ""
    cause: str = ""

    @property
    def in_points(self) -> bool:
        """Whether errors are differences; else they are relative."""
        return self.quantity == "all_reduce_share"

    @property
    def error(self) -> float:
        """Predicted against stated; of a bound, how far it is broken."""
        return self._off(self.predicted)

    @property
    def peer_error(self) -> float:
        """The same of the peer."""
        return self._off(self.peer)

    @property
    def missed(self) -> bool:
        """Whether the error is above what the model is asked for."""
        return abs(self.error) > ASKED.get(self.quantity, ASKED_ELSE)

    @property
    def inside(self) -> bool:
        """Whether the band holds the stated value; of a bound, whether it reaches that side."""
        if self.bound == "lower":
            return self.high >= self.stated
        if self.bound == "upper":
            return self.low <= self.stated
        return self.low <= self.stated <= self.high

    def _off(self, value: float) -> float:
        off = value - self.stated if self.in_points else value / self.stated - 1
        return off if self.bound == "value" else max(-off if self.bound == "lower" else off, 0.0)


@dataclass(frozen=True)
class Summary:
    """Of the values of one case: median of the absolute errors, and how many the bands hold."""

    case: str
    quantity: str
    n: int
    median_error: float
    median_peer_error: float
    inside: int
    median_width: float


def summaries(judged: Iterable[Judged]) -> list[Summary]:
    """Return a summary of each case and quantity, of stated values only: bounds have no error.

    A stated efficiency that is expanded to several frameworks or networks counts once.
    """
    groups: dict[tuple[str, str], dict[tuple[str, int, str], Judged]] = {}
    for one in judged:
        if one.bound == "value":
            group = groups.setdefault((one.case, one.quantity), {})
            expanded = one.quantity == "parallel_efficiency"
            group.setdefault((one.statement, one.ranks, "" if expanded else one.series), one)
    return [
        _summary(case, quantity, list(group.values())) for (case, quantity), group in groups.items()
    ]


def held(found: Iterable[Summary]) -> tuple[int, int]:
    """Return how many values the bands hold, and of how many.

    An ``overhead_s`` is a step less a constant, and the same value a second time.
    """
    counted = [one for one in found if one.quantity != "overhead_s"]
    return sum(one.inside for one in counted), sum(one.n for one in counted)


def _summary(case: str, quantity: str, rows: Sequence[Judged]) -> Summary:
    widths = [(row.high - row.low) / (1.0 if row.in_points else row.stated) for row in rows]
    return Summary(
        case,
        quantity,
        len(rows),
        float(np.median([abs(row.error) for row in rows])),
        float(np.median([abs(row.peer_error) for row in rows])),
        sum(row.inside for row in rows),
        float(np.median(widths)),
    )
