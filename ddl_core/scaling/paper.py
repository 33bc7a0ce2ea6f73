"""What the paper states of JUWELS Booster: parallel efficiencies, times, and ranges from both."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from ddl_core.errors import DataError
from ddl_core.records.paths import PAPER
from ddl_core.scaling.amdahl import Bound, Observation, efficiency, serial_part
from ddl_core.scaling.configuration import Configuration, Span
from ddl_core.spec.run import IMAGENET_TRAIN_IMAGES

BASE = 4  # GPUs, one node
EPOCHS = 90  # of a stated time
BATCH_SIZE = 64
ROUNDING_S = 1800.0  # of a stated time on 4 GPUs, "about 13 h"
_DALI = "dali"  # DALI, whether on the CPU or the GPU the paper does not say

Row = dict[str, str]


class Stated(NamedTuple):
    """A stated parallel efficiency, or one that follows from two stated times.

    ``least`` and ``ranks`` are the smallest and the largest number of GPUs that it covers.
    """

    statement: str
    least: int
    ranks: int
    value: float
    bound: Bound


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a table of text.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; it belongs to the repository, restore it with "
            "`git checkout data`"
        ) from None


def base_time_s(model: str, directory: Path = PAPER) -> float | None:
    """Return the stated seconds of 90 epochs on 4 GPUs; None where the paper states none.

    Raises
    ------
    DataError
        If the table is missing.
    """
    rows = _times(model, directory)
    return next((float(row["value"]) for row in rows if int(row["world_size"]) == BASE), None)


def _times(model: str, directory: Path) -> list[Row]:
    """Return the stated times of a network; a bound of a time (C3) is none."""
    rows = _about(model, read_rows(directory / "runtime.csv"))
    return [row for row in rows if (row["quantity"], row["bound"]) == ("runtime", "value")]


def _about(model: str, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["model"] == model and "model" not in row["inferred"]]


def stated(model: str, strategy: str, loader: str, directory: Path = PAPER) -> list[Stated]:
    """Return the efficiencies of a network with a strategy and a loader, each statement once.

    A statement that says DALI and not where it decodes is taken for the CPU: the paper's summary
    holds there alone (C4). Left out is a statement that names no network.

    Raises
    ------
    DataError
        If a table is missing.
    """

    def mine(row: Row) -> bool:
        own = row["loader"] == loader or (row["loader"], loader) == (_DALI, "dali_cpu")
        return own and row["strategy"] == strategy

    found = [
        Stated(
            row["statement"],
            int(row["world_size_min"]),
            int(row["world_size"]),
            float(row["value"]),
            cast(Bound, row["bound"]),
        )
        for row in filter(mine, _about(model, read_rows(directory / "efficiency.csv")))
    ]
    base = base_time_s(model, directory)
    for row in filter(mine, _times(model, directory)):
        ranks = int(row["world_size"])
        if base and ranks > BASE:
            value = BASE * base / (ranks * float(row["value"]))
            found.append(Stated(row["statement"], ranks, ranks, value, "value"))
    return found


def observations(found: Sequence[Stated]) -> list[Observation]:
    """Return statements as values and bounds at the largest number of GPUs that they cover."""
    return [Observation(one.ranks, one.value, one.bound) for one in found]


def efficiency_range(found: Sequence[Stated], ranks: int) -> tuple[float, float] | None:
    """Return the range of E on so many GPUs; None where no statement bounds it from below.

    The upper end is 1. The lower end is the largest stated lower bound of this size or a larger
    one: E is taken not to rise with the number of GPUs. Beyond the largest size, E falls from there
    by Amdahl's law. Values stated of just this size are within the range, whatever the bounds.
    """
    if ranks == BASE:
        return 1.0, 1.0
    bounds = [one for one in found if one.bound == "lower"]
    if not bounds:
        return None
    largest = max(one.ranks for one in bounds)
    least = max(one.value for one in bounds if one.ranks >= min(ranks, largest))
    if ranks > largest:
        least = float(efficiency(serial_part(least, largest, BASE), ranks, BASE))
    values = [one.value for one in found if one.bound == "value" and one.ranks == ranks]
    return min([least, *values]), max([1.0, *values])


def configurations(model: str, directory: Path = PAPER) -> list[Configuration]:
    """Return the configurations of which the paper bounds the time of a network from both sides.

    None of a network without a stated time on 4 GPUs, and none of the native loader, whose
    efficiencies are stated as upper bounds and without a time.

    Raises
    ------
    DataError
        If a table is missing.
    """
    base = base_time_s(model, directory)
    if base is None:
        return []
    settings = {row["name"]: row["value"] for row in read_rows(directory / "settings.csv")}
    rows = _about(model, read_rows(directory / "efficiency.csv"))
    named = dict.fromkeys((row["strategy"], row["loader"]) for row in rows)
    found = []
    for strategy, loader in named:
        if loader not in ("dali_cpu", "dali_gpu"):
            continue
        about = stated(model, strategy, loader, directory)
        if efficiency_range(about, BASE * 2):
            found.append(_configuration(settings, strategy, loader, base, about))
    return found


def _configuration(
    settings: dict[str, str], strategy: str, loader: str, base_s: float, about: Sequence[Stated]
) -> Configuration:
    images = EPOCHS * IMAGENET_TRAIN_IMAGES

    def throughput(ranks: int) -> Span:
        known = efficiency_range(about, ranks)
        assert known is not None
        each = images / BASE
        low = each * ranks * known[0] / (base_s + ROUNDING_S)
        high = each * ranks * known[1] / (base_s - ROUNDING_S)
        return Span(float(np.sqrt(low * high)), low, high)

    ids = ", ".join(dict.fromkeys(one.statement for one in about))
    return Configuration(
        machine=settings["system"],
        strategy=strategy,
        loader=loader,
        details="",
        batch_size=BATCH_SIZE,
        ranks_per_node=int(settings["gpus_per_node"]),
        sizes=(BASE, max(one.ranks for one in about)),
        sources=(
            f"bounds from the paper's {ids}",
            f"its time on {BASE} GPUs, {base_s / 3600:g} h, rounded to an hour",
        ),
        throughput=throughput,
    )


def left_out(directory: Path = PAPER) -> str:
    """Return why the paper's native loader is no candidate, and what it states of it.

    Raises
    ------
    DataError
        If the table is missing.
    """
    rows = read_rows(directory / "claims.csv")
    claim = next(row["claim"] for row in rows if row["statement"] == "O01")
    return f"the native loader: the paper states efficiencies of it and no time; O01: {claim}"
