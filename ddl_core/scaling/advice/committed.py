"""What advice needs of the paper, and what figures show of it, as tables in data/scaling/.

    python -m ddl_core.scaling.advice.committed

The fits take minutes, and their last digits differ between processors; so they are committed. A
test makes a part of them again and compares.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ddl_core.records.paths import PAPER, PROJECT, SCALING, Tree, committed
from ddl_core.records.storage import write_atomically
from ddl_core.scaling.advice import paper, told
from ddl_core.scaling.advice.advise import Place, Question, advise
from ddl_core.scaling.advice.candidates import Limits
from ddl_core.scaling.box_case import STUDY, fit_series, read_runs, series_of
from ddl_core.scaling.calibrate import calibrate
from ddl_core.scaling.committed import RANKS, Table, band_rows, csv_text, point_row
from ddl_core.scaling.fit import Band, band, of_ratio
from ddl_core.scaling.paper_case import BASE, MODELS
from ddl_core.spec.run import IMAGENET_TRAIN_IMAGES

# The example of the figure and of docs/advise.md: the paper's network on the paper's machine.
JUWELS = Place("juwels_booster", "JUWELS Booster", 4)
_BOX_MBIT = 20.0  # the middle one of its rates
_OWN = ("laptop", "ddp", "native", "resnet50")
EXAMPLE = Question(JUWELS, "resnet50", Limits(deadline=1.0, accuracy=75.0))


def admitted(model: str, loader: str) -> Table:
    """Fit what the paper states of a network with a loader; return the rows of admitted.csv."""
    series = paper.series_of(model, loader)
    return paper.admitted_rows(series, loader, paper.fit_stated(series, loader))


def example() -> Table:
    """Return the candidates of the example, from the paper alone; admitted.csv has to be there."""
    return told.rows(advise(EXAMPLE, Tree(PROJECT / "no records")))


def stated_bands(model: str) -> Table:
    """Return what all stated values of a network say of 1 to 4096 GPUs with PyTorch-DDP.

    Efficiency, and where a time is stated throughput as well.
    """
    found: Table = []
    for one in paper.arms(model):
        if one.strategy != "ddp":
            continue
        name = f"{model}, {one.loader}"
        seconds = one.epoch_s(IMAGENET_TRAIN_IMAGES, RANKS)
        each = 1 / (seconds * RANKS)
        noise = of_ratio(one.noise, RANKS, BASE)
        efficiency = band(each / each[:, [RANKS.index(BASE)]], noise)
        found += band_rows(name, "parallel_efficiency", RANKS, efficiency)
        series = paper.series_of(model, one.loader)
        for row in paper.stated(series, one.loader):
            if row.quantity == "parallel_efficiency" and row.statement.startswith("E"):
                place = row.ranks, row.value, row.bound
                found.append(point_row("stated", name, row.quantity, *place))
        if one.loader != "native":
            rates = band(IMAGENET_TRAIN_IMAGES / seconds, one.noise)
            found += band_rows(name, "throughput", RANKS, rates)
            found += [
                point_row("stated", name, "throughput", ranks, rate)
                for ranks, rate in paper.throughputs(series, one.loader)
            ]
    return found


def own_bands() -> Table:
    """Return what the laptop study says of 1 to 4096 workers with PyTorch-DDP."""
    calibrated = calibrate(committed(), *_OWN)
    name = "laptop, resnet50, native"
    found = band_rows(name, "throughput", RANKS, calibrated.throughput(RANKS))
    runs = [one for one in calibrated.measured if one.kind == "train" and not one.synthetic]
    for one in runs:
        if one.training and one.training.strategy == _OWN[1]:  # not the single process beside it
            images = one.ranks * one.training.local_batch_size
            found.append(point_row("measured", name, "throughput", one.ranks, images / one.seconds))
    return found


def emulated_bands() -> Table:
    """Return what all faithful runs of PyTorch-DDP in the box say of 1 to 4096 nodes."""
    series = next(one for one in series_of(read_runs(STUDY)) if one.name == "ddp")
    box = fit_series(series, np.full(len(series.ranks), True))
    name = f"box, ddp, {_BOX_MBIT:g} Mbit/s"
    efficiency, _ = box.efficiency(_BOX_MBIT, RANKS)
    found = band_rows(name, "parallel_efficiency", RANKS, efficiency)
    alone = series.training.local_batch_size / box.alone_s
    per_rank = np.array(RANKS) * alone
    rates = Band(*(part * per_rank for part in vars(efficiency).values()))
    found += band_rows(name, "throughput", RANKS, rates)
    for _, ranks, value in box.efficiencies(_BOX_MBIT):
        found.append(point_row("emulated", name, "parallel_efficiency", ranks, value))
        found.append(point_row("emulated", name, "throughput", ranks, value * ranks * alone))
    return found


def write(directory: Path = SCALING) -> None:
    """Make all tables and write them.

    Raises
    ------
    RecordError
        If the folder cannot be written.
    """
    rows = [
        row
        for model in MODELS
        for loader in paper.loaders(model, PAPER)
        for row in admitted(model, loader)
    ]
    _write(directory, {"admitted": rows})
    bands = [row for model in MODELS for row in stated_bands(model)]
    _write(directory, {"advice": example(), "bands": bands + own_bands() + emulated_bands()})


def _write(directory: Path, tables: Mapping[str, Table]) -> None:
    for name, table in tables.items():
        write_atomically(directory / f"{name}.csv", csv_text(table))


if __name__ == "__main__":
    write()
