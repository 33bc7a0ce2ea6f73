"""Energy of a run as people ask for it: joules per image, kWh, kg CO2e, and how it was measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddl_core.records.run import EpochRecord, RunRecord, read_epochs, read_record

J_PER_KWH = 3.6e6
# World, 2025, life cycle, all greenhouse gases: 458.29 g CO2e for each kWh generated. Ember, Yearly
# Electricity Data, as processed by Our World in Data: column carbon_intensity_elec of
# owid-energy-data.csv, github.com/owid/energy-data, commit e7897ae.
WORLD_G_PER_KWH = 458.29


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


def run_energy(run_dir: Path | str, g_per_kwh: float = WORLD_G_PER_KWH) -> str:
    """Return what a run used, by which method, and what is not in it; or why there is no number.

    Raises
    ------
    RecordError
        If the record or the epochs of the run cannot be read.
    """
    record, epochs = read_record(Path(run_dir)), read_epochs(Path(run_dir))
    method, missing = told(record)
    if method is None:
        return f"energy: not measured ({missing})"
    total = kwh(epochs)
    if total is None:
        return "energy: " + ("lost in at least one window" if epochs else "no window is over yet")
    per_image = joules_per_image([row for row in epochs if row.phase == "train" and not row.cold])
    lines = [
        f"energy: {total:.4g} kWh in {len(epochs)} windows",
        f"{kg_co2e(total, g_per_kwh):.4g} kg CO2e at {g_per_kwh:g} g/kWh",
        f"{per_image:.4g} J per image in warm epochs" if per_image is not None else "no warm epoch",
        f"measured: {method}",
        *([f"not measured: {missing}"] if missing else []),
    ]
    return "\n  ".join(lines)


def told(record: RunRecord) -> tuple[str | None, str | None]:
    """Return what the record says was measured, and what not and why."""
    system = record.system or {}
    unknown = "the run is older than the measurement, or never started"
    return system.get("energy_method"), system.get("energy_missing", unknown)
