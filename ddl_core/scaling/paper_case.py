"""The paper: fitted on 64 GPUs and fewer, judged at 128 to 1024.

At 64 GPUs and fewer the paper states two runtimes, both on 4 GPUs, and the shares of Table 2. No
efficiency: E is 1 at 4 GPUs by definition, and the next value is stated at 128. So the shares have
to tell how much of the waiting is exposed, by when each of DDP's buckets is ready; E follows with
nothing fitted to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddl_core.records.paths import PAPER
from ddl_core.scaling.collectives import Network
from ddl_core.scaling.fit import Band, Fitted, Parameter, Point, fit, of_ratio
from ddl_core.scaling.gradients import resnet
from ddl_core.scaling.judged import Judged
from ddl_core.scaling.loading import Loading
from ddl_core.scaling.messages import Training
from ddl_core.scaling.model import Machine, exposed_s, predict
from ddl_core.scaling.power_law import PowerLaw, power_law
from ddl_core.scaling.sources import Row, read_rows
from ddl_core.scaling.waiting import Delays

MOST_FITTED = 64  # GPUs; what is stated above judges
BASE = 4
NOISE = 0.05  # the spread of repeats that the paper states (settings.csv, run_to_run_variance)
MODELS = ("resnet50", "resnet101", "resnet152")
LOADERS = ("dali", "native")

_BATCH, _EPOCHS, _IMAGES = 64, 90, 1_281_167
_INSIDE = 240e9  # B/s of an all-reduce over NVLink 3, 12 links of 25 GB/s, four fifths reached
_LATENCY, _INSIDE_LATENCY = 5e-6, 1e-6  # s; at 1024 GPUs a ring costs 5 ms, which overlaps

# Four HDR adapters of 25 GB/s a node; a ring over all of them moves 100 GB/s at most.
_BANDWIDTH = Parameter("bandwidth", "B/s", 20e9, 100e9, 80e9)
_EPOCH = Parameter("epoch_s", "s", 1e-3, 1.0, 1e-3)
# Of a GPU and of a node, over the step on 4 GPUs.
_JITTER = Parameter("jitter", "1", 1e-4, 0.5, 1e-4)
_STALL = Parameter("stall", "1", 1e-4, 0.5, 1e-4)
_SHARED = Parameter("shared_rate", "images/s", 1e3, 1e8, 1e8)

_LIMIT = "the file system's limit, which no value at 64 GPUs and fewer shows"
_CAUSES = {
    ("all_reduce_share", "native"): _LIMIT,
    ("parallel_efficiency", "native"): _LIMIT,
    ("all_reduce_share", "dali"): "waiting grows faster than independent delays have it: shared "
    "causes, or epochs of 20 to 40 steps",
    ("parallel_efficiency", "dali"): "a cost per epoch (C9), 1 % of an epoch on 64 GPUs and 16 "
    "times that on 1024",
}


@dataclass(frozen=True)
class Series:
    """The stated all-reduce shares of one network with one loader on PyTorch-DDP, by GPUs."""

    model: str
    loader: str
    base_step_s: float
    ranks: NDArray[np.float64]
    shares: NDArray[np.float64]
    cudnn: NDArray[np.float64]
    doubts: tuple[str, ...]

    @property
    def name(self) -> str:
        """E.g. ``"resnet50, dali"``."""
        return f"{self.model}, {self.loader}"

    @property
    def case(self) -> str:
        """The group that its values are judged in."""
        return f"paper, {self.loader}"

    @property
    def fitted(self) -> NDArray[np.bool_]:
        """Which of the values are fitted."""
        return np.asarray(self.ranks <= MOST_FITTED)


@dataclass(frozen=True)
class PaperFit:
    """A series and its fit."""

    series: Series
    fitted: Fitted

    def machine(self, point: Point, strategy: str = "ddp") -> Machine:
        """Return the machine that takes the stated time on 4 GPUs with these parameters."""
        return machine_of(self.series, point, training_of(self.series.model, strategy))

    def band(self, quantity: str, ranks: Sequence[int], strategy: str = "ddp") -> Band:
        """Return the band of ``all_reduce_share`` or ``parallel_efficiency`` at `ranks`."""
        training = training_of(self.series.model, strategy)
        share = quantity == "all_reduce_share"

        def predicted(point: Point) -> NDArray[np.float64]:
            sizes = [BASE, *ranks]
            found = predict(self.machine(point, strategy), training, sizes)
            return (found.all_reduce_share if share else found.efficiency(BASE))[1:]

        return self.fitted.band(predicted, None if share else of_ratio(NOISE, ranks, BASE))


def read_series(directory: Path = PAPER) -> list[Series]:
    """Return Table 2 by network and loader.

    Raises
    ------
    DataError
        If a table of the paper is missing.
    """
    rows = read_rows(directory / "profile.csv")
    steps = _base_steps(read_rows(directory / "runtime.csv"), read_rows(directory / "settings.csv"))
    return [_series(model, loader, steps[model], rows) for loader in LOADERS for model in MODELS]


def _series(model: str, loader: str, base_step_s: float, rows: Sequence[Row]) -> Series:
    mine = [row for row in rows if (row["model"], row["loader"]) == (model, loader)]
    mine.sort(key=lambda row: int(row["world_size"]))
    columns = ("world_size", "allreduce_percent", "cudnn_percent")
    ranks, shares, cudnn = (np.array([float(row[name]) for row in mine]) for name in columns)
    doubts = tuple("C6" if "C6" in row["contradiction"] else "" for row in mine)
    return Series(model, loader, base_step_s, ranks, shares / 100, cudnn / 100, doubts)


def _base_steps(runtimes: Sequence[Row], settings: Sequence[Row]) -> dict[str, float]:
    """Return seconds of a step on 4 GPUs: stated, and for ResNet101 between, by multiply-adds."""
    steps = {
        row["model"]: float(row["value"]) * BASE * _BATCH / (_EPOCHS * _IMAGES)
        for row in runtimes
        if row["statement"] in ("R03", "R06")
    }
    flop = {row["model"]: float(row["value"]) for row in settings if row["name"] == "forward_flop"}
    known = sorted(steps, key=flop.__getitem__)
    between = np.interp(
        [flop[model] for model in MODELS],
        [flop[model] for model in known],
        [steps[model] for model in known],
    )
    return dict(zip(MODELS, map(float, between), strict=True))


def training_of(model: str, strategy: str) -> Training:
    """Return what the paper trains: ImageNet, 64 images a GPU."""
    return Training(resnet(model), strategy, _BATCH, _IMAGES)


def machine_of(series: Series, point: Point, training: Training) -> Machine:
    """Return the machine that takes the stated time on 4 GPUs with these parameters."""
    step = series.base_step_s
    network = Network(point["bandwidth"], _LATENCY, _INSIDE, _INSIDE_LATENCY, BASE, "fastest")
    delays = Delays(point["jitter"] * step, point["stall"] * step, BASE)
    base = np.array([float(BASE)])
    whole = Machine(step, network)
    exposed = float(exposed_s(whole, training, base)[0])
    # A delay of most of the step would leave nothing to compute: such points fit nothing.
    compute = max(step - exposed - float(delays.slowest(BASE)), 0.01 * step)
    return replace(
        whole,
        compute_s=compute,
        jitter=delays.jitter_s / compute,
        stall_s=delays.stall_s,
        loading=Loading(shared_rate=point.get("shared_rate", np.inf)),
        epoch_s=point["epoch_s"],
    )


def parameters_of(series: Series) -> list[Parameter]:
    """Return what is looked for.

    Reading folders may be limited by the file system, which opens a file for each image; reading
    TFRecord is taken not to be.
    """
    limit = [_SHARED] if series.loader == "native" else []
    return [_JITTER, _STALL, _BANDWIDTH, _EPOCH, *limit]


def fit_series(series: Series) -> PaperFit:
    """Fit the shares at 64 GPUs and fewer."""
    training = training_of(series.model, "ddp")
    ranks, shares = series.ranks[series.fitted], series.shares[series.fitted]

    def predicted(point: Point) -> NDArray[np.float64]:
        return predict(machine_of(series, point, training), training, ranks).all_reduce_share

    return PaperFit(series, fit(parameters_of(series), predicted, shares, NOISE))


def judge_paper(fits: Sequence[PaperFit], directory: Path = PAPER) -> list[Judged]:
    """Return what the paper states above 64 GPUs of the series of `fits`, beside predictions."""
    rows = read_rows(directory / "efficiency.csv")
    rows = [row for row in rows if int(row["world_size"]) > MOST_FITTED]
    by_name = {(one.series.model, one.series.loader): one for one in fits}
    found = [one for fitted in fits for one in _shares(fitted)]
    for row in rows:
        loader = "native" if row["loader"] == "native" else "dali"
        if fitted := by_name.get((row["model"], loader)):
            found.append(_efficiency(fitted, row))
    return found


def _shares(fitted: PaperFit) -> list[Judged]:
    series = fitted.series
    held = ~series.fitted
    ranks = series.ranks[held]
    band = fitted.band("all_reduce_share", [int(count) for count in ranks])
    peer = share_peer(series).predict(ranks)
    doubts = [doubt for doubt, out in zip(series.doubts, held, strict=True) if out]
    return [
        Judged(
            case=series.case,
            series=series.name,
            statement="Table 2",
            quantity="all_reduce_share",
            ranks=int(ranks[place]),
            stated=float(series.shares[held][place]),
            bound="value",
            predicted=float(band.value[place]),
            low=float(band.low[place]),
            high=float(band.high[place]),
            peer=float(peer[place]),
            doubt=doubts[place],
            cause=_CAUSES["all_reduce_share", series.loader],
        )
        for place in range(len(ranks))
    ]


def _efficiency(fitted: PaperFit, row: Row) -> Judged:
    ranks, strategy = int(row["world_size"]), row["strategy"]
    band = fitted.band("parallel_efficiency", [ranks], strategy)
    return Judged(
        fitted.series.case,
        f"{row['model']}, {row['loader']}, {strategy}",
        row["statement"],
        "parallel_efficiency",
        ranks,
        float(row["value"]),
        row["bound"],
        float(band.value[0]),
        float(band.low[0]),
        float(band.high[0]),
        float(efficiency_peer(fitted.series).predict(ranks / BASE)),
        doubt=" ".join(part for part in row["contradiction"].split(";") if part in ("C2", "C5")),
        cause=_CAUSES["parallel_efficiency", fitted.series.loader],
    )


def share_peer(series: Series) -> PowerLaw:
    """Return a power law of the all-reduce share through the fitted values."""
    return power_law(series.ranks[series.fitted], series.shares[series.fitted])


def efficiency_peer(series: Series) -> PowerLaw:
    """Return a power law of E by G/4, through cuDNN's share over that on 4 GPUs.

    That is E if kernels fill the time (docs/reading_the_paper.md, C7): all that the paper lets a
    peer know of E at 64 GPUs and fewer. It is 1 at 4 GPUs.
    """
    ranks, cudnn = series.ranks[series.fitted], series.cudnn[series.fitted]
    law = power_law(ranks, cudnn)
    return PowerLaw(1.0, law.exponent)
