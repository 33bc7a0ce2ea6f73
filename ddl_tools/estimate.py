"""A value with its interval, and the one way in which texts show both."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Estimate:
    """A value, and the ends of its interval where it has one.

    n counts the observations. log_se and df, where known, are the standard error of the value's
    logarithm and its degrees of freedom: `ddl_tools.analysis.estimates` reckons with them. They are
    no part of equality: NaN equals itself in dataclasses before Python 3.13 only.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    log_se: float = field(default=math.nan, compare=False)
    df: float = field(default=math.nan, compare=False)

    @classmethod
    def of(cls, row: Mapping[Any, Any], name: str = "value") -> "Estimate":
        """Return the estimate that a row of a table has in the columns of `columns`."""
        value, low, high = (float(row.get(column, math.nan)) for column in _columns(name))
        return cls(value, low, high)

    def columns(self, name: str = "value") -> dict[str, float]:
        """Return the columns value, low and high of a table, or name, name_low and name_high."""
        return dict(zip(_columns(name), (self.value, self.low, self.high), strict=True))

    @property
    def log_mean(self) -> float:
        """The logarithm of the value, NaN without a value."""
        return math.log(self.value)

    def log(self) -> "Estimate":
        """Return the logarithm: of a ratio of exponentials, their difference."""
        value, low, high = map(math.log, (self.value, self.low, self.high))
        return Estimate(value, low, high, self.n)

    def times(self, factor: float) -> "Estimate":
        """Return the estimate in another unit; `factor` is above 0."""
        value, low, high = (factor * part for part in (self.value, self.low, self.high))
        return Estimate(value, low, high, self.n, self.log_se, self.df)

    def alone(self) -> "Estimate":
        """Return the value without its interval."""
        return Estimate(self.value, n=self.n)

    def __format__(self, form: str) -> str:
        """Return e.g. ``"1.25 [1.16, 1.35]"``: each number in `form`, three digits without one.

        Nothing without a value.
        """
        if math.isnan(self.value):
            return ""
        parts = (self.value, self.low, self.high)
        text, *ends = (format(part, form) if form else three_digits(part) for part in parts)
        return text if math.isnan(self.low) else f"{text} [{', '.join(ends)}]"

    def __str__(self) -> str:
        """Return value and interval with three digits."""
        return format(self, "")


def three_digits(value: float) -> str:
    """Return a value rounded to three digits: ``"7.00"``, ``"16.2"``, ``"126"``, ``"2,460"``."""
    text = f"{value:#.3g}"
    return f"{float(text):,.0f}" if "e+" in text else text.rstrip(".")


def percent(share: float) -> str:
    """Return a share for people, e.g. ``"12 %"``."""
    return f"{100 * share:.0f} %".replace("-", "\N{MINUS SIGN}")


def _columns(name: str) -> tuple[str, str, str]:
    stem = "" if name == "value" else f"{name}_"
    return name, f"{stem}low", f"{stem}high"
