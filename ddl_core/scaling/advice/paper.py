"""What the paper's numbers say, all of them: for advice nothing is held out.

A fit takes seconds, so the sets of parameters that the numbers admit are committed, as
data/scaling/admitted.csv; `python -m ddl_core.scaling.committed` writes it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ddl_core.records.paths import PAPER, SCALING
from ddl_core.scaling.advice.evidence import Evidence
from ddl_core.scaling.fit import Fitted, Point, Values, fit
from ddl_core.scaling.model import predict
from ddl_core.scaling.paper_case import (
    BASE,
    MODELS,
    NOISE,
    Series,
    machine_of,
    parameters_of,
    read_series,
    training_of,
)
from ddl_core.scaling.sources import Row, read_rows
from ddl_core.spec.run import IMAGENET_TRAIN_IMAGES

EPOCHS = 90  # of a stated runtime
_COPIED = "C6"  # a pair of cells that stands in two rows, so that one of them is wrong
_UNNAMED = "dali"  # a loader of the paper: DALI, whether on the CPU or the GPU it does not say


@dataclass(frozen=True)
class Stated:
    """A stated value above the base. Efficiencies and shares are fractions."""

    statement: str
    quantity: str
    strategy: str
    ranks: int
    value: float
    bound: str


def loaders(model: str, directory: Path = PAPER) -> list[str]:
    """Return the loaders, by our names, of which the paper states something for a network."""
    named = {row["loader"] for row in _about(model, read_rows(directory / "efficiency.csv"))}
    return ["dali_cpu", *(["dali_gpu"] if "dali_gpu" in named else []), "native"]


def series_of(model: str, loader: str, directory: Path = PAPER) -> Series:
    """Return what Table 2 has of a network with a loader; of DALI it is the same for both.

    Raises
    ------
    DataError
        If a table is missing.
    """
    name = "native" if loader == "native" else _UNNAMED
    return next(one for one in read_series(directory) if (one.model, one.loader) == (model, name))


def throughputs(series: Series, loader: str) -> list[tuple[int, float]]:
    """Return the GPUs and images per second of the stated runtimes; none if it is not stated."""
    found = [(one.ranks, one.value) for one in stated(series, loader) if one.statement[0] == "R"]
    if not found:
        return []
    base = EPOCHS * IMAGENET_TRAIN_IMAGES / base_runtime_s(series)
    return [(BASE, base), *((ranks, base * ranks / BASE * value) for ranks, value in found)]


def stated(series: Series, loader: str, directory: Path = PAPER) -> list[Stated]:
    """Return what the paper states of a network with a loader.

    Left out is what names no network, a copied pair of cells, and what is the same for a second
    strategy, as it counts once. What says DALI and not where it decodes is taken for the CPU: its
    stated summary holds there alone (C4).

    Parameters
    ----------
    series
        The shares of Table 2; of DALI they are the same for both ways to decode.
    loader
        ``native``, ``dali_cpu`` or ``dali_gpu``.
    directory
        The paper's tables.

    Raises
    ------
    DataError
        If a table is missing.
    """
    shares = zip(series.ranks, series.shares, series.doubts, strict=True)
    found = [
        Stated("Table 2", "all_reduce_share", "ddp", int(ranks), float(share), "value")
        for ranks, share, doubt in shares
        if doubt != _COPIED
    ]
    rows = [
        *_about(series.model, read_rows(directory / "efficiency.csv")),
        *(row for row in _about(series.model, read_rows(directory / "runtime.csv")) if _run(row)),
    ]
    once: dict[tuple[str, int], Stated] = {}
    for row in rows:
        if row["loader"] == loader or (row["loader"], loader) == (_UNNAMED, "dali_cpu"):
            one = _efficiency(row, series)
            once.setdefault((one.statement, one.ranks), one)
    return [*found, *once.values()]


def _about(model: str, rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["model"] == model and "model" not in row["inferred"]]


def _run(row: Row) -> bool:
    """Say whether a row is a runtime that is not the base itself; its bounds say less (C3)."""
    stands = row["quantity"] == "runtime" and row["bound"] == "value"
    return stands and int(row["world_size"]) > BASE


def _efficiency(row: Row, series: Series) -> Stated:
    ranks, value = int(row["world_size"]), float(row["value"])
    if row["quantity"] == "runtime":
        value = BASE * base_runtime_s(series) / (ranks * value)
    return Stated(
        row["statement"], "parallel_efficiency", row["strategy"], ranks, value, row["bound"]
    )


def base_runtime_s(series: Series) -> float:
    """Return the seconds of all epochs on 4 GPUs."""
    batch = BASE * training_of(series.model, "ddp").local_batch_size
    return series.base_step_s * EPOCHS * IMAGENET_TRAIN_IMAGES / batch


def fit_stated(series: Series, loader: str, directory: Path = PAPER) -> Fitted:
    """Fit all that the paper states of a network with a loader; a bound counts where it is broken.

    Raises
    ------
    DataError
        If a table is missing.
    """
    wanted = stated(series, loader, directory)

    def predicted(point: Point) -> Values:
        return _values(series, wanted, point)

    return fit(parameters_of(series), predicted, [one.value for one in wanted], NOISE)


def _values(series: Series, wanted: Sequence[Stated], point: Point) -> Values:
    found = {}
    for strategy in {one.strategy for one in wanted}:
        sizes = sorted({BASE} | {one.ranks for one in wanted if one.strategy == strategy})
        training = training_of(series.model, strategy)
        prediction = predict(machine_of(series, point, training), training, sizes)
        places = {size: place for place, size in enumerate(sizes)}
        efficiency = prediction.efficiency(BASE)
        for one in wanted:
            if one.strategy == strategy:
                share = one.quantity == "all_reduce_share"
                values = prediction.all_reduce_share if share else efficiency
                found[one] = _bounded(float(values[places[one.ranks]]), one)
    return np.array([found[one] for one in wanted])


def _bounded(value: float, one: Stated) -> float:
    if one.bound == "value":
        return value
    return min(value, one.value) if one.bound == "lower" else max(value, one.value)


def name(series: Series, loader: str) -> str:
    """Return what data/scaling/admitted.csv calls a fit, e.g. ``"resnet50, dali_cpu"``."""
    return f"{series.model}, {loader}"


def admitted_rows(series: Series, loader: str, fitted: Fitted) -> list[dict[str, object]]:
    """Return the sets that a fit admits as rows of data/scaling/admitted.csv."""
    return [
        {"series": name(series, loader), "shared_rate": ""} | dict(point)
        for point in fitted.admitted
    ]


def evidence(model: str, directory: Path = PAPER, fits: Path = SCALING) -> list[Evidence]:
    """Return what the paper says of a network in seconds, by strategy and loader.

    Nothing of some networks, and nothing of the native loader: its efficiencies are stated alone.

    Raises
    ------
    DataError
        If a table is missing.
    """
    return [one for one in arms(model, directory, fits) if one.loader != "native"]


def arms(model: str, directory: Path = PAPER, fits: Path = SCALING) -> list[Evidence]:
    """Return the same with the native loader, its time on 4 GPUs taken to be DALI's.

    Raises
    ------
    DataError
        If a table is missing.
    """
    if model not in MODELS:
        return []
    found = []
    for loader in loaders(model, directory):
        series = series_of(model, loader, directory)
        for strategy in _strategies(model, loader, directory):
            found.append(_arm(series, loader, strategy, directory, fits))
    return found


def _arm(series: Series, loader: str, strategy: str, directory: Path, fits: Path) -> Evidence:
    settings = {row["name"]: row["value"] for row in read_rows(directory / "settings.csv")}
    rows = read_rows(fits / "admitted.csv")
    wanted = stated(series, loader, directory)
    training = training_of(series.model, strategy)
    return Evidence(
        machine=settings["system"],
        strategy=strategy,
        loader=loader,
        model=series.model,
        dataset="imagenet",
        gpus_per_node=int(settings["gpus_per_node"]),
        sizes=tuple(sorted({one.ranks for one in wanted})),
        rests_on=_rests_on(series, wanted),
        admitted=[_point(row) for row in rows if row["series"] == name(series, loader)],
        noise=NOISE,
        training=training,
        built=partial(machine_of, series, training=training),
    )


def _point(row: Row) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if key != "series" and value}


def _strategies(model: str, loader: str, directory: Path) -> list[str]:
    """Return the strategies that a statement names with a loader; Table 2 is of PyTorch-DDP."""
    rows = _about(model, read_rows(directory / "efficiency.csv"))
    named = [row["strategy"] for row in rows if row["loader"] == loader]
    return list(dict.fromkeys(["ddp", *named]))


def _rests_on(series: Series, wanted: Sequence[Stated]) -> tuple[str, ...]:
    ids = [one.statement for one in wanted]
    told = ", ".join(dict.fromkeys(ids)).replace("Table 2", "Table 2 (PyTorch-DDP)")
    time = {
        "resnet50": "R03 for the time on 4 GPUs",
        "resnet101": "the time on 4 GPUs, not stated, between R03 and R06 by multiply-adds",
        "resnet152": "R06 for the time on 4 GPUs",
    }
    return (f"the paper's {told}", time[series.model])


def left_out(directory: Path = PAPER) -> str:
    """Return why the paper's native loader is no candidate, and what it states of it.

    Raises
    ------
    DataError
        If the table is missing.
    """
    rows = read_rows(directory / "claims.csv")
    summary = next(row["claim"] for row in rows if row["statement"] == "O01")
    return f"the native loader: the paper states efficiencies of it and no time; O01: {summary}"
