"""The cluster in a box: fitted on 4 nodes and fewer, judged on more of them and on slower links.

Compute and the rate of the links are known there, one asked for and one measured before each run.
What is fitted is what a step costs besides: something of each step, and of each message's way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddl_core.emulation.nodes import ON_THE_WIRE
from ddl_core.errors import DataError
from ddl_core.records.paths import Tree, committed
from ddl_core.records.run import read_record
from ddl_core.scaling.calibrate import warm_step_s
from ddl_core.scaling.collectives import Network
from ddl_core.scaling.fit import Band, Fitted, Parameter, Point, fit, of_ratio
from ddl_core.scaling.judged import Judged
from ddl_core.scaling.messages import Training
from ddl_core.scaling.model import Machine, predict
from ddl_core.scaling.power_law import PowerPlane, power_plane
from ddl_core.spec.run import RunSpec

STUDY = "cluster_in_a_box"
MOST_FITTED = 4
NOISE = 0.01  # of a step: the box itself is off by about as much
MORE, SLOWER = "box, more nodes", "box, slower links"
_LONGER = "ranks of the box wait for a core, which the model does not know"
_SHORTER = (
    "the model lets each message wait for the one before; in the box the steps of several go on "
    "beside one another"
)


class Timed(NamedTuple):
    """A faithful emulated run. ``mbit`` is what was asked for, ``rate`` what a link then carried.

    That is in bytes a second, without headers; endless of a node that is alone.
    """

    spec: RunSpec
    step_s: float
    rate: float

    @property
    def mbit(self) -> float:
        """Of one node, that of no link."""
        return self.spec.box_link_mbit if self.spec.nodes > 1 else np.inf

    @property
    def compute_s(self) -> float:
        """Seconds of a step that were asked for."""
        return self.spec.box_step_ms / 1000


def read_runs(study: str, tree: Tree | None = None) -> list[Timed]:
    """Return the faithful runs of a study of emulated nodes, published ones by default.

    Raises
    ------
    DataError
        If there are none.
    RecordError
        If a record cannot be read.
    """
    tree = tree or committed()
    found = [timed for path in tree.run_folders(study) if (timed := _timed(path))]
    if not found:
        raise DataError(f"no faithful emulated run in {tree.study(study)}; run the study first")
    return found


def _timed(directory: Path) -> Timed | None:
    record = read_record(directory)
    facts = record.emulation
    if record.status != "completed" or facts is None or facts.unfaithful:
        return None
    mbit = facts.link_mbit_least
    rate = mbit * 1e6 / 8 / ON_THE_WIRE if mbit else np.inf
    return Timed(record.spec, warm_step_s(directory, record), rate)


@dataclass(frozen=True)
class Series:
    """What one framework took: a row for each number of nodes and rate, shape (R,) each.

    ``step_s`` is the mean of the repeats; ``rate`` the slowest that was measured.
    """

    name: str
    training: Training
    compute_s: float
    ranks: NDArray[np.float64]
    mbit: NDArray[np.float64]
    rate: NDArray[np.float64]
    step_s: NDArray[np.float64]

    @property
    def fitted(self) -> NDArray[np.bool_]:
        """Whether a row is fitted: few nodes, and not the slowest links."""
        return (self.ranks <= MOST_FITTED) & (self.mbit > self.mbit.min())

    @property
    def overhead_s(self) -> NDArray[np.float64]:
        """What a step takes besides compute."""
        return self.step_s - self.compute_s

    def predicted(self, point: Point, rows: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the step of some rows by the model."""
        pairs = zip(self.rate[rows], self.ranks[rows], strict=True)
        steps = [
            predict(self.machine(point, rate), self.training, ranks).step_s[0]
            for rate, ranks in pairs
        ]
        return np.array(steps)

    def machine(self, point: Point, rate: float) -> Machine:
        """Return the box with links of this `rate`, bytes a second."""
        latency = point["latency_s"]
        network = Network(rate, latency, rate, latency)
        return Machine(
            self.compute_s,
            network,
            framework_s=point["framework_s"],
            straggler=point.get("straggler", 0.0),
            jitter=point.get("jitter", 0.0),
        )


def series_of(runs: Sequence[Timed]) -> list[Series]:
    """Return a series for each framework and stage."""
    groups: dict[str, list[Timed]] = {}
    for run in runs:
        groups.setdefault(_name(run.spec), []).append(run)
    return [_series(name, group) for name, group in sorted(groups.items())]


def _name(spec: RunSpec) -> str:
    stage = f", stage {spec.deepspeed_zero_stage}" if spec.strategy == "deepspeed" else ""
    return spec.strategy + stage


def _series(name: str, runs: Sequence[Timed]) -> Series:
    rows: dict[tuple[float, int], list[Timed]] = {}
    for run in runs:
        rows.setdefault((-run.mbit, run.spec.nodes), []).append(run)
    groups = [rows[key] for key in sorted(rows)]
    first = groups[0][0]
    return Series(
        name,
        Training.of(first.spec),
        first.compute_s,
        np.array([group[0].spec.nodes for group in groups], float),
        np.array([group[0].mbit for group in groups]),
        np.array([min(run.rate for run in group) for group in groups]),
        np.array([np.mean([run.step_s for run in group]) for group in groups]),
    )


@dataclass(frozen=True)
class BoxFit:
    """A series and its fit."""

    series: Series
    fitted: Fitted

    def band(self, rows: NDArray[np.bool_]) -> Band:
        """Return the band of the step of some rows."""
        return self.fitted.band(lambda point: self.series.predicted(point, rows))

    @property
    def mbits(self) -> list[float]:
        """The rates of the links."""
        return sorted({float(mbit) for mbit in self.series.mbit if mbit < np.inf})

    def efficiency(self, mbit: float, ranks: Sequence[int]) -> tuple[Band, NDArray[np.float64]]:
        """Return the step of one node over that of `ranks`: its band, and that by the peer."""
        series, count = self.series, np.array([1, *ranks], float)
        rate = float(series.rate[series.mbit == mbit].mean())

        def predicted(point: Point) -> NDArray[np.float64]:
            step = predict(series.machine(point, rate), series.training, count).step_s
            return np.asarray(step[0] / step[1:])

        law = _peer(series).predict(count[1:], mbit)
        overhead = np.where(count[1:] > 1, law, 0.0)
        noise = of_ratio(self.fitted.spread, ranks, 1)
        return self.fitted.band(predicted, noise), series.compute_s / (series.compute_s + overhead)

    @property
    def alone_s(self) -> float:
        """Seconds of a step of one node, as the box had it."""
        return float(self.series.step_s[self.series.ranks == 1].mean())

    def efficiencies(self, mbit: float) -> list[tuple[bool, int, float]]:
        """Return whether a value was fitted, its ranks and itself, as the box had them."""
        series = self.series
        rows = np.flatnonzero(series.mbit == mbit)
        values = zip(series.fitted[rows], series.ranks[rows], series.step_s[rows], strict=True)
        return [(bool(fitted), int(ranks), self.alone_s / step) for fitted, ranks, step in values]


def costs(compute_s: float) -> list[Parameter]:
    """Return what is looked for of a box: seconds of each step, and of each step of a ring."""
    least = 1e-5 * compute_s
    return [
        Parameter("framework_s", "s", least, 0.1 * compute_s, least),
        Parameter("latency_s", "s", 1e-6, 0.1, 1e-6),
    ]


def fit_series(series: Series, rows: NDArray[np.bool_] | None = None) -> BoxFit:
    """Fit what few nodes took with the faster links; or some other `rows`."""
    rows = series.fitted if rows is None else rows
    parameters = costs(series.compute_s)
    found = fit(parameters, lambda point: series.predicted(point, rows), series.step_s[rows], NOISE)
    return BoxFit(series, found)


def judge_box(fits: Sequence[BoxFit]) -> list[Judged]:
    """Return every held-out step and its overhead beside what was predicted of them."""
    return [row for one in fits for row in _judged(one)]


def _judged(one: BoxFit) -> list[Judged]:
    series = one.series
    held = ~series.fitted
    band, peer = one.band(held), _peer(series).predict(series.ranks, series.mbit)
    found = []
    for quantity, off in (("step_s", 0.0), ("overhead_s", series.compute_s)):
        for place, row in enumerate(np.flatnonzero(held)):
            ranks, mbit = int(series.ranks[row]), series.mbit[row]
            took, predicted = float(series.step_s[row]), float(band.value[place])
            found.append(
                Judged(
                    case=MORE if ranks > MOST_FITTED else SLOWER,
                    series=f"{series.name}, {mbit:g} Mbit/s",
                    statement="",
                    quantity=quantity,
                    ranks=ranks,
                    stated=took - off,
                    bound="value",
                    predicted=predicted - off,
                    low=float(band.low[place]) - off,
                    high=float(band.high[place]) - off,
                    peer=series.compute_s + float(peer[row]) - off,
                    cause=_LONGER if took > predicted else _SHORTER,
                )
            )
    return found


def _peer(series: Series) -> PowerPlane:
    """Return a power law of nodes and rate through the fitted overheads."""
    rows = series.fitted & (series.ranks > 1)
    return power_plane(series.ranks[rows], series.mbit[rows], series.overhead_s[rows])
