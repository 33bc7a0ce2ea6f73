"""Quantities of the study as pure functions, each with the source of its formula.

Notation: DT throughput, T runtime.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ddl_tools.names import plural
from ddl_tools.records.run import EpochRecord

Values = Sequence[float] | np.ndarray

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


def describe(epochs: Sequence[EpochRecord]) -> str:
    """Return the throughput of a run in words, or why it has none."""
    warm = [row for row in epochs if row.phase == "train" and not row.cold]
    if not warm:
        return "no throughput, as no epoch counts: all were cold or profiled"
    rate = throughput(sum(row.samples for row in warm), sum(row.wall_s for row in warm))
    return f"{rate:.1f} images/s in {plural(len(warm), 'measured epoch')}"


def runtime(wall_s: Values) -> float:
    """Return T, seconds: the sum of the wall times of all training epochs, the cold one too.

    Aach et al. 2023, "Benchmark results", do not say whether T contains evaluation. Here it does
    not, and neither does it contain start-up or checkpoints. NaN without epochs.
    """
    return float(np.sum(wall_s)) if len(wall_s) else float("nan")


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
