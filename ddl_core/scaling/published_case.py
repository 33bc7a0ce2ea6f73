"""Published series of other machines: fitted on 16 GPUs and fewer, judged on the rest.

Nine series go beyond 16 GPUs. Of those that do not and have three sizes, the largest is held
out: a case of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddl_core.records.paths import PUBLISHED
from ddl_core.scaling.collectives import Network
from ddl_core.scaling.fit import Band, Fitted, Parameter, Point, fit
from ddl_core.scaling.gradients import resnet
from ddl_core.scaling.judged import Judged
from ddl_core.scaling.loading import Loading
from ddl_core.scaling.messages import Training
from ddl_core.scaling.model import Machine, predict
from ddl_core.scaling.power_law import PowerLaw, power_law
from ddl_core.scaling.sources import Row, read_rows

MOST_FITTED = 16
NOISE = 0.03  # values of one machine that should be alike differ by 1 to 5 %
LARGE, SMALL = "published, above 16 GPUs", "published, largest of a smaller series"

_UNUSED = ("doubtful", "unconfirmed")
_KEYS = ("source", "model", "framework", "hardware", "precision", "loader", "note")
_GPUS_PER_NODE = {"NVIDIA A100-SXM-40GB": 4}  # Dell XE8545; all others have 8
_ANY_BATCH = 128  # where none is stated; it cancels
_CAUSE = "few fitted sizes, which do not tell stalls, links and a loader's limit apart"


@dataclass(frozen=True)
class Series:
    """Throughputs of one machine and software over its number of GPUs."""

    name: str
    case: str
    hardware: str
    strategy: str
    loader: str
    precision: str
    model: str
    gpus_per_node: int
    local_batch_size: int
    ranks: NDArray[np.float64]
    throughput: NDArray[np.float64]
    fitted: NDArray[np.bool_]

    @property
    def peer(self) -> PowerLaw:
        """A power law through the fitted values."""
        return power_law(self.ranks[self.fitted], self.throughput[self.fitted])


@dataclass(frozen=True)
class PublishedFit:
    """A series and its fit."""

    series: Series
    fitted: Fitted

    def band(self, ranks: Sequence[int]) -> Band:
        """Return the band of the throughput at `ranks`."""
        return self.fitted.band(lambda point: _throughput(self.series, point, np.array(ranks)))


def read_series(directory: Path = PUBLISHED) -> list[Series]:
    """Return every series with enough sizes to fit some and judge another.

    Raises
    ------
    DataError
        If the table is missing.
    """
    rows = [
        row
        for row in read_rows(directory / "performance.csv")
        if row["quantity"] == "throughput" and row["evidence"] not in _UNUSED
    ]

    def key(row: Row) -> tuple[str, ...]:
        return tuple(row[name] for name in _KEYS)

    groups = [list(group) for _, group in groupby(sorted(rows, key=key), key)]
    return [found for group in groups if (found := _series(group))]


def _series(rows: list[Row]) -> Series | None:
    rows = sorted(rows, key=lambda row: int(row["world_size"]))
    ranks = np.array([float(row["world_size"]) for row in rows])
    large = bool((ranks > MOST_FITTED).any())
    fitted = ranks <= MOST_FITTED if large else ranks < ranks.max()
    if len(np.unique(ranks)) < len(ranks) or fitted.sum() < 2 or fitted.all():
        return None
    first = rows[0]
    batch = first["global_batch_size"]
    words = (first["source"], first["framework"], first["hardware"], first["precision"])
    return Series(
        ", ".join(part for part in (*words, first["loader"], first["note"]) if part),
        LARGE if large else SMALL,
        first["hardware"],
        _strategy(first["framework"]),
        first["loader"],
        first["precision"],
        first["model"],
        _GPUS_PER_NODE.get(first["hardware"], 8),
        int(batch) // int(first["world_size"]) if batch else _ANY_BATCH,
        ranks,
        np.array([float(row["value"]) for row in rows]),
        np.asarray(fitted),
    )


def _strategy(framework: str) -> str:
    """Return whose overlap is nearest: NVIDIA's MXNet uses Horovod, the others have buckets."""
    return "horovod" if "Horovod" in framework or framework == "MXNet" else "ddp"


def fit_series(series: Series) -> PublishedFit:
    """Fit the smaller sizes: computing, links inside and between nodes, stalls, a node's loader."""
    ranks, measured = series.ranks[series.fitted], series.throughput[series.fitted]
    each = measured / ranks
    step = series.local_batch_size / float(each.max())
    nodes = np.ceil(ranks / series.gpus_per_node)
    node_rate = float((measured / nodes).max())
    parameters = [
        Parameter("compute_s", "s", 0.7 * step, 1.5 * step, step),
        Parameter("inside_bandwidth", "B/s", 1e8, 1e12, 1e12),
        Parameter("stall_s", "s", 1e-4 * step, step, 1e-4 * step),
        Parameter("node_rate", "images/s", 0.7 * node_rate, 100 * node_rate, 100 * node_rate),
    ]
    if series.ranks.max() > series.gpus_per_node:
        parameters.append(Parameter("bandwidth", "B/s", 1e8, 1e12, 1e12))
    found = fit(parameters, lambda point: _throughput(series, point, ranks), measured, NOISE)
    return PublishedFit(series, found)


def machine_of(series: Series, point: Point) -> Machine:
    """Return the machine of a series with these parameters."""
    inside = point["inside_bandwidth"]
    return Machine(
        compute_s=point["compute_s"],
        network=Network(
            point.get("bandwidth", inside),
            inside_bandwidth=inside,
            gpus_per_node=series.gpus_per_node,
        ),
        loading=Loading(node_rate=point["node_rate"]),
        stall_s=point["stall_s"],
    )


def training_of(series: Series) -> Training:
    """Return what a series trains, as far as it says."""
    return Training(resnet(series.model), series.strategy, series.local_batch_size)


def _throughput(series: Series, point: Point, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    return predict(machine_of(series, point), training_of(series), ranks).throughput


def judge_published(fits: Sequence[PublishedFit]) -> list[Judged]:
    """Return every held-out throughput beside what was predicted of it."""
    found = []
    for one in fits:
        series = one.series
        held = ~series.fitted
        ranks = [int(count) for count in series.ranks[held]]
        band = one.band(ranks)
        for place, count in enumerate(ranks):
            found.append(
                Judged(
                    case=series.case,
                    series=series.name,
                    statement="",
                    quantity="throughput",
                    ranks=count,
                    stated=float(series.throughput[held][place]),
                    bound="value",
                    predicted=float(band.value[place]),
                    low=float(band.low[place]),
                    high=float(band.high[place]),
                    peer=float(series.peer.predict(count)),
                    cause=_CAUSE,
                )
            )
    return found
