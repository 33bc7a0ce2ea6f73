"""What else the cluster in a box can judge: causes that were planted in it, and its twin.

A cause is planted by a field of the runs, and looked for among the costs of a fit. The twin is the
simulation of the same box: compared with it where it was run.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddl_core.emulation.nodes import ON_THE_WIRE
from ddl_core.scaling.box_case import NOISE, BoxFit, Series, Timed, costs, series_of
from ddl_core.scaling.fit import Estimate, Parameter, Point, fit
from ddl_core.scaling.simulate import simulate
from ddl_core.spec.run import RunSpec

DELAYS = "box_delays"
# Far above what is told, messages cost nothing.
_BANDWIDTH = Parameter("bandwidth", "of what is told", 0.1, 100, 100)
_PLANTED = {"straggler": Parameter("straggler", "1", 1e-3, 1.0, 1e-3),
            "jitter": Parameter("jitter", "1", 1e-3, 0.5, 1e-3)}  # fmt: skip


class Planted(NamedTuple):
    """A cause that was planted in the runs of a series, and what a fit found of it."""

    series: str
    planted: float
    found: Estimate

    @property
    def error(self) -> float:
        """Found relative to planted."""
        return self.found.value / self.planted - 1


class Twin(NamedTuple):
    """A step by the box and by its twin, seconds."""

    series: str
    mbit: float
    ranks: int
    box_s: float
    twin_s: float


def find_links(series: Sequence[Series], most: int) -> list[Planted]:
    """Look for the bandwidth in what up to `most` nodes took, as if no link had been measured.

    One number for all links of a series: what they carry, over what they were told to.
    """
    return [_link(one, most) for one in series]


def _link(series: Series, most: int) -> Planted:
    rows = series.ranks <= most
    told = series.mbit * 1e6 / 8 / ON_THE_WIRE
    free = [*costs(series.compute_s), _BANDWIDTH]

    def predicted(point: Point) -> NDArray[np.float64]:
        return replace(series, rate=point["bandwidth"] * told).predicted(point, rows)

    found = fit(free, predicted, series.step_s[rows], NOISE).estimates["bandwidth"]
    return Planted(series.name, 1.0, found)


def find_delays(runs: Sequence[Timed]) -> list[Planted]:
    """Look for the slow rank and for uneven steps, each beside the runs without both."""
    (even,) = series_of([run for run in runs if not _causes(run.spec)])
    found = []
    for name, parameter in _PLANTED.items():
        mine = [run for run in runs if name in _causes(run.spec)]
        (value,) = {_causes(run.spec)[name] for run in mine}
        (uneven,) = series_of(mine)
        found.append(Planted(f"{uneven.name}, {name}", value, _delay(even, uneven, parameter)))
    return found


def _causes(spec: RunSpec) -> dict[str, float]:
    planted = {"straggler": spec.box_straggler - 1, "jitter": spec.box_jitter}
    return {name: value for name, value in planted.items() if value}


def _delay(even: Series, uneven: Series, parameter: Parameter) -> Estimate:
    def predicted(point: Point) -> NDArray[np.float64]:
        shared = {name: value for name, value in point.items() if name != parameter.name}
        parts = (_all(even, shared), _all(uneven, point))
        return np.concatenate(parts)

    measured = np.concatenate([even.step_s, uneven.step_s])
    free = [*costs(even.compute_s), parameter]
    return fit(free, predicted, measured, NOISE).estimates[parameter.name]


def _all(series: Series, point: Point) -> NDArray[np.float64]:
    return series.predicted(point, np.full(len(series.ranks), True))


def twins(fits: Sequence[BoxFit]) -> list[Twin]:
    """Return what the twin says of every size and rate of the box."""
    return [row for one in fits for row in _twins(one)]


def _twins(one: BoxFit) -> list[Twin]:
    series, found = one.series, []
    for row in np.flatnonzero(series.ranks > 1):
        ranks, rate = int(series.ranks[row]), float(series.rate[row])
        took = _twin_s(one, ranks, rate)
        found.append(Twin(series.name, float(series.mbit[row]), ranks, series.step_s[row], took))
    return found


def _twin_s(one: BoxFit, ranks: int, rate: float) -> float:
    """Return a step; without chance all are alike."""
    machine = one.series.machine(one.fitted.best, rate)
    return float(simulate(machine, one.series.training, ranks, steps=1).step_s[0])
