"""Ratios of throughputs with intervals that cover what they say, and what they decide.

All of it on logarithms: a ratio and its reciprocal then say the same, and a drift that slows two
neighbouring windows by the same factor leaves their ratio as it is. ``benchmarks/coverage.py``
counts how often the intervals cover.
"""

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit  # Student's t: scipy.stats takes fifty times as long

from ddl_tools.estimate import Estimate

LEVEL = 0.95
ALPHA = 0.05
# "In general below 5 %" is the spread of repeats that the paper states (captions of Figs. 3 to 7).
MARGIN = 0.05
POINT = 0.01  # accuracies are alike within one percentage point
LEAST = 3  # observations of an interval: that of two may be wider than the axis

GREATER, LESS, EQUIVALENT, INCONCLUSIVE = "greater", "less", "equivalent", "inconclusive"


def middle(values: ArrayLike) -> Estimate:
    """Return the geometric mean of some values with the interval of Student's t on logs.

    The two-sided 95 % interval is ``value * exp(-+ t * log_se)``, with Student's t of ``df``
    degrees of freedom. Fewer than `LEAST` values have no interval; of no value, the estimate is
    NaN. `ValueError` here and below, if a value is not positive and finite.
    """
    return _of_logs(_logs(values))


def paired_ratio(values: ArrayLike, base: ArrayLike) -> Estimate:
    """Return the ratio of `values` to `base`, pairs by position: t on log ratios, n - 1 df.

    `ValueError` if the two differ in length.
    """
    above, below = _logs(values), _logs(base)
    if len(above) != len(below):
        raise ValueError(f"pairs need two series of one length, not {len(above)} and {len(below)}")
    return _of_logs(above - below)


def unpaired_ratio(values: ArrayLike, base: ArrayLike) -> Estimate:
    """Return the same ratio from observations that are no pairs: Welch's t on logs.

    Degrees of freedom after Satterthwaite 1946 (Biometrics Bulletin 2, 110-114); n is that of the
    smaller series, and a series of fewer than `LEAST` leaves no interval.
    """
    return product(middle(values), scaled(middle(base), power=-1))


def product(*factors: Estimate) -> Estimate:
    """Return the product of independent estimates: variances of logs add, df by Satterthwaite."""
    variances = np.array([factor.log_se**2 for factor in factors])
    freedom = np.array([factor.df for factor in factors])
    shares, total = float(np.sum(variances**2 / freedom)), float(np.sum(variances))
    # Without any spread, the fewest degrees of freedom are the cautious ones.
    df = total**2 / shares if shares > 0 else float(np.min(freedom))
    log_mean = sum(factor.log_mean for factor in factors)
    return _estimate(min(factor.n for factor in factors), log_mean, math.sqrt(total), df)


def scaled(estimate: Estimate, factor: float = 1.0, power: int = 1) -> Estimate:
    """Return ``factor * estimate ** power``, e.g. an efficiency: a ratio times G0 / G."""
    log_mean = power * estimate.log_mean + math.log(factor)
    return _estimate(estimate.n, log_mean, abs(power) * estimate.log_se, estimate.df)


def p_greater(estimate: Estimate, bound: float = 1.0) -> float:
    """Return the one-sided p of "the ratio is `bound` or less"; 1 without an interval."""
    return _p_above(estimate.log_mean - math.log(bound), estimate)


def p_less(estimate: Estimate, bound: float = 1.0) -> float:
    """Return the one-sided p of "the ratio is `bound` or more"; 1 without an interval."""
    return _p_above(math.log(bound) - estimate.log_mean, estimate)


def decision(estimate: Estimate, margin: float = MARGIN) -> str:
    """Return what the interval of a ratio says: greater, less, equivalent or inconclusive.

    A ratio whose whole interval lies within the margin is equivalent, even if 1 is not in it.
    Without an interval nothing can be said.
    """
    if 1 / (1 + margin) <= estimate.low and estimate.high <= 1 + margin:
        return EQUIVALENT
    if estimate.low > 1:
        return GREATER
    return LESS if estimate.high < 1 else INCONCLUSIVE


def of_interval(n: int, found: Estimate) -> Estimate:
    """Return an estimate of n observations as its interval gives it: n - 1 degrees of freedom."""
    df = n - 1 if n > 1 else math.nan
    log_se = math.log(found.high / found.low) / (2 * _quantile(df))
    return _estimate(n, found.log_mean, log_se, df)


def resolution(log_sd: float, n: int) -> float:
    """Return the half-width of the interval that n pairs give, as a fraction of the ratio.

    `log_sd` is the standard deviation of a log ratio. The upper half, the wider one. Infinite with
    fewer than `LEAST`.
    """
    return math.expm1(_quantile(n - 1) * log_sd / math.sqrt(n)) if n >= LEAST else math.inf


def pairs_needed(log_sd: float, margin: float) -> int:
    """Return the fewest pairs whose `resolution` is at most `margin`, above 0."""
    return next(n for n in itertools.count(LEAST) if resolution(log_sd, n) <= margin)


def _logs(values: ArrayLike) -> np.ndarray:
    known = np.asarray(values, dtype=float)
    wrong = known[~(np.isfinite(known) & (known > 0))]
    if len(wrong):
        raise ValueError(f"a ratio needs positive, finite values; leave out {wrong[0]}")
    return np.log(known)


def _of_logs(logs: np.ndarray) -> Estimate:
    n = len(logs)
    log_mean = float(np.mean(logs)) if n else math.nan
    log_se = float(np.std(logs, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return _estimate(n, log_mean, log_se, n - 1 if n > 1 else math.nan)


def _estimate(n: int, log_mean: float, log_se: float, df: float) -> Estimate:
    half = _quantile(df) * log_se
    low, high = math.exp(log_mean - half), math.exp(log_mean + half)
    if n < LEAST:
        low = high = math.nan
    return Estimate(math.exp(log_mean), low, high, n, log_se, df)


def _quantile(df: float) -> float:
    return float(stdtrit(df, (1 + LEVEL) / 2))


def _p_above(distance: float, estimate: Estimate) -> float:
    """Return the chance of a log mean this far above its bound if the bound were true."""
    if math.isnan(estimate.log_se) or estimate.n < LEAST:
        return 1.0
    if estimate.log_se == 0:
        return 0.0 if distance > 0 else 1.0
    return float(stdtr(estimate.df, -distance / estimate.log_se))
