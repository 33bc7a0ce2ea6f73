"""The quantities of the study as pure functions, each with the source of its formula.

Notation: DT throughput, T runtime, G workers, G0 workers of the base.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from ddl_core.records.run import EpochRecord

LEVEL = 0.95
RESAMPLES = 1_999
SEED = 20231

Values = Sequence[float] | np.ndarray
Interval = tuple[float, float]

J_PER_KWH = 3.6e6
# World, 2025, life cycle, all greenhouse gases: 458.29 g CO2e for each kWh generated. Ember, Yearly
# Electricity Data, as processed by Our World in Data: column carbon_intensity_elec of
# owid-energy-data.csv, github.com/owid/energy-data, commit e7897ae.
WORLD_G_PER_KWH = 458.29


def throughput(samples: float, wall_s: float) -> float:
    """Return DT, images per second: images the optimiser consumed / wall time of all ranks.

    Aach et al. 2023, "Efficiency", name DT without a formula; the definition is ours: one count
    and one time for the whole group, never a mean of rates. NaN without time.
    """
    return samples / wall_s if wall_s > 0 else float("nan")


def runtime(wall_s: Values) -> float:
    """Return T, seconds: the sum of the wall times of all training epochs, the cold one too.

    Aach et al. 2023, "Benchmark results", do not say whether T contains evaluation. Here it does
    not, and neither does it contain start-up or checkpoints. NaN without epochs.
    """
    return float(np.sum(wall_s)) if len(wall_s) else float("nan")


def relative_efficiency(
    base_workers: int, base_throughput: float, workers: int, throughput: float
) -> float:
    """Return E_G = (DT_G / G) / (DT_G0 / G0); 1 is ideal.

    Aach et al. 2023, eq. 3, with the factor G0 that the printed equation omits and the paper's
    figures contain, has runtimes: E_G = G0 T_G0 / (G T_G). For equal work DT T is constant, so this
    is the same. From throughputs the cold epoch can be left out, and dropped last batches do not
    bias it.
    """
    return (throughput / workers) / (base_throughput / base_workers)


def bootstrap_interval(values: Values, level: float = LEVEL, seed: int = SEED) -> Interval:
    """Return the percentile bootstrap interval of the median (Efron and Tibshirani 1993, ch. 13).

    With three values it is exactly their range: a resample has the smallest value as its median
    with probability 7/27, far above 2.5 %. That range contains the true median with probability
    1 - 2 (1/2)^3 = 75 %, so with n = 3 read it as "what was seen", not as 95 % certainty. From
    n = 6 on, even the range covers more than 95 %. One value has no interval: (NaN, NaN).
    """
    clean = _finite(values)
    if len(clean) < 2:
        return float("nan"), float("nan")
    return _percentiles(_medians(clean, seed), level)


def bootstrap_ratio_interval(
    values: Values, base: Values, level: float = LEVEL, seed: int = SEED
) -> Interval:
    """Return the same interval of median(values) / median(base), both resampled, independently.

    So the spread of the base widens the interval of everything that is relative to it.
    """
    above, below = _finite(values), _finite(base)
    if len(above) < 2 or len(below) < 2:
        return float("nan"), float("nan")
    return _percentiles(_medians(above, seed) / _medians(below, seed + 1), level)


def summarise(table: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Return one row per group: the columns `by`, n, median, min, max, low, high of `value`.

    Missing and non-finite values do not count towards n; a group without any keeps its row, with
    n = 0. low and high are `bootstrap_interval`.
    """
    keys = list(by)
    rows = []
    for group, part in table.groupby(keys, dropna=False, sort=True):
        values = _finite(part[value])
        low, high = bootstrap_interval(values)
        ends = (values.min(), values.max()) if len(values) else (np.nan, np.nan)
        middle = float(np.median(values)) if len(values) else np.nan
        rows.append((*group, len(values), middle, *ends, low, high))
    return pd.DataFrame(rows, columns=[*keys, "n", "median", "min", "max", "low", "high"])


def _finite(values: Values) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    return array[np.isfinite(array)]


def _medians(values: np.ndarray, seed: int) -> np.ndarray:
    """Return the medians of `RESAMPLES` resamples of `values`."""
    ranked = np.sort(values)
    lower, upper = _middle_ranks(len(values), seed)
    return (ranked[lower] + ranked[upper]) / 2


@lru_cache(maxsize=64)
def _middle_ranks(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw resamples of n values; return the ranks of each one's two middle values.

    The median of a resample depends on its ranks alone, so one drawing serves all groups of n.
    """
    picks = np.sort(np.random.default_rng(seed).integers(0, n, size=(RESAMPLES, n)), axis=1)
    return picks[:, (n - 1) // 2], picks[:, n // 2]


def _percentiles(draws: np.ndarray, level: float) -> Interval:
    """Return the ends of the central `level` of the draws (Davison and Hinkley 1997, eq. 5.6)."""
    rank = round((len(draws) + 1) * (1 - level) / 2)
    ordered = np.sort(draws)
    return float(ordered[rank - 1]), float(ordered[-rank])


def joules(epochs: Sequence[EpochRecord]) -> float | None:
    """Return the energy of `epochs` together; None if there is none, or one was not measured."""
    values = [row.energy_j for row in epochs if row.energy_j is not None]
    return sum(values) if values and len(values) == len(epochs) else None


def joules_per_image(warm: Sequence[EpochRecord]) -> float | None:
    """Return J per image that the optimiser consumed, in warm training epochs; None if unknown."""
    total, images = joules(warm), sum(row.samples for row in warm)
    return None if total is None or not images else total / images


def kwh(epochs: Sequence[EpochRecord]) -> float | None:
    """Return the energy of all windows of a run, 1 kWh = 3.6 MJ; None if unknown."""
    total = joules(epochs)
    return None if total is None else total / J_PER_KWH


def kg_co2e(kwh: Any, g_per_kwh: float) -> Any:
    """Return kg CO2e = kWh * (g CO2e / kWh) / 1000; numbers or a column of them.

    Of the electricity that was measured: nothing of cooling, nor of making the machine.
    """
    return kwh * g_per_kwh / 1000
