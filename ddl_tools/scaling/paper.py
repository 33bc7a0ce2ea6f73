"""What the paper states of JUWELS Booster: parallel efficiencies, times, and ranges from both."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from ddl_core.config import IMAGENET_TRAIN_IMAGES, RunSpec
from ddl_core.errors import DataError
from ddl_core.origin import restored
from ddl_tools.estimate import Estimate
from ddl_tools.records.paths import PAPER
from ddl_tools.scaling.amdahl import Bound, Observation, efficiency, serial_part
from ddl_tools.scaling.candidate import Candidate

BASE = 4  # GPUs, one node of JUWELS Booster
EPOCHS = 90  # of a stated time, and of a stated accuracy
ACCURACY_MODEL = "resnet50"  # the only network of which accuracies are stated
BATCH_SIZE = 64  # of a GPU
IMAGE_SIZE = 224  # the usual one, since none is stated
ROUNDING_S = 1800.0  # of a stated time on 4 GPUs, "about 13 h"
_DALI = "dali"  # DALI, whether on the CPU or the GPU the paper does not say

Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a table of stated numbers.

    `DataError` if it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; it belongs to the project, restore it with "
            f"`{restored('data')}`"
        ) from None


def base_time_s(model: str) -> float | None:
    """Return the stated seconds of 90 epochs on 4 GPUs; None where the paper states none."""
    rows = _times(model)
    return next((float(row["value"]) for row in rows if int(row["world_size"]) == BASE), None)


def base_step_s(model: str) -> float | None:
    """Return the seconds of a step on 4 GPUs by `base_time_s`."""
    base = base_time_s(model)
    return base and base * BASE * BATCH_SIZE / (EPOCHS * IMAGENET_TRAIN_IMAGES)


def _times(model: str) -> list[Row]:
    """Return the stated times of a network; a bound of a time (C3) is none."""
    rows = _about(model, read_rows(PAPER / "runtime.csv"))
    return [row for row in rows if (row["quantity"], row["bound"]) == ("runtime", "value")]


def _about(model: str, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["model"] == model and "model" not in row["inferred"]]


def stated(model: str, strategy: str, loader: str) -> list[Observation]:
    """Return the stated efficiencies, and those that follow from two stated times.

    A bound is given at the largest number of GPUs that it covers. A statement that says DALI and
    not where it decodes is taken for the CPU: the paper's summary holds there alone (C4). Left out
    is a statement that names no network.
    """

    def mine(row: Row) -> bool:
        own = row["loader"] == loader or (row["loader"], loader) == (_DALI, "dali_cpu")
        return own and row["strategy"] == strategy

    found = [
        Observation(
            int(row["world_size"]),
            float(row["value"]),
            cast(Bound, row["bound"]),
            row["statement"],
        )
        for row in filter(mine, _about(model, read_rows(PAPER / "efficiency.csv")))
    ]
    base = base_time_s(model)
    for row in filter(mine, _times(model)):
        ranks = int(row["world_size"])
        if base and ranks > BASE:
            value = BASE * base / (ranks * float(row["value"]))
            found.append(Observation(ranks, value, "value", row["statement"]))
    return found


def covers(stated: str, name: str) -> bool:
    """Say whether a statement about `stated` speaks of `name`: ``dali`` means CPU or GPU."""
    return name == stated or (stated == "dali" and name.startswith("dali_"))


def efficiency_range(found: Sequence[Observation], ranks: int) -> tuple[float, float] | None:
    """Return the range of E on `ranks` GPUs; None where no statement bounds it from below.

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


def candidates(model: str) -> list[Candidate]:
    """Return the candidates of which the paper bounds the time of a network from both sides.

    None of a network without a stated time on 4 GPUs, and none of the native loader, whose
    efficiencies are stated as upper bounds and without a time.
    """
    base = base_time_s(model)
    if base is None:
        return []
    rows = _about(model, read_rows(PAPER / "efficiency.csv"))
    named = dict.fromkeys((row["strategy"], row["loader"]) for row in rows)
    known = {
        (strategy, loader): stated(model, strategy, loader)
        for strategy, loader in named
        if loader in ("dali_cpu", "dali_gpu")
    }
    return [
        _candidate(model, strategy, loader, base, about)
        for (strategy, loader), about in known.items()
        if efficiency_range(about, BASE * 2)
    ]


def _candidate(
    model: str, strategy: str, loader: str, base_s: float, about: Sequence[Observation]
) -> Candidate:
    settings = {row["name"]: row["value"] for row in read_rows(PAPER / "settings.csv")}
    own = {"model": model, "strategy": strategy, "loader": loader, "image_size": IMAGE_SIZE}
    own |= {"dataset": "imagenet", "data_format": "tfrecord", "local_batch_size": BATCH_SIZE}
    size = {"device": "cuda", "gpus_per_node": int(settings["gpus_per_node"])}
    spec = RunSpec.parse({**own, **size})

    def throughput(ranks: int) -> Estimate:
        known = efficiency_range(about, ranks)
        assert known is not None
        images = EPOCHS * IMAGENET_TRAIN_IMAGES / BASE * ranks
        low = images * known[0] / (base_s + ROUNDING_S)
        high = images * known[1] / (base_s - ROUNDING_S)
        return Estimate(float(np.sqrt(low * high)), low, high)

    def describes(other: RunSpec) -> bool:
        """Compare what the paper states; it says nothing of precision (N2)."""
        names = {*own, "framework", "work", "accumulation", "simulated"}
        alike = all(getattr(other, name) == getattr(spec, name) for name in names)
        return alike and other.device != "cpu"

    ids = ", ".join(dict.fromkeys(one.statement for one in about))
    return Candidate(
        spec,
        settings["system"],
        sizes=(BASE, max(one.ranks for one in about)),
        sources=(
            f"bounds from the paper's {ids}",
            f"its time on {BASE} GPUs, {base_s / 3600:g} h, rounded to an hour",
        ),
        throughput=throughput,
        describes=describes,
    )
