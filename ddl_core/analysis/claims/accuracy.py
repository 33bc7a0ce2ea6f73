"""What the records show of accuracy: differences in points, paired by repeat.

A repeat is a seed: where two arms have the same repeats, these share images, order and initial
weights, and are compared pair by pair. Accuracies are alike within one percentage point, far less
than the paper's differences (3 points from 4,096 to 8,192 images, 10 to 21 between schedules) and
about what it calls similar. The statistics are those of ratios: a difference of accuracies is the
logarithm of the ratio of their exponentials.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ddl_core.analysis import estimates
from ddl_core.analysis.claims import terms
from ddl_core.analysis.claims.decide import Seen
from ddl_core.analysis.claims.statements import LOCAL_BATCH, Part
from ddl_core.analysis.estimates import Estimate
from ddl_core.analysis.figures import accuracy as figure
from ddl_core.analysis.plot import style
from ddl_core.spec.labels import REPEATS
from ddl_core.spec.run import RunSpec

POINT = 0.01
MARGIN = math.expm1(POINT)  # the same on the scale of `estimates`

QUANTITIES = ("top1", "top1_early", "top1_late")
EARLY = 20 / 90  # of a training: the epochs in which the curves of Fig. 9 are called alike
LAST_SMALL_WORLD = 64  # GPUs: a batch of 4,096, before the first clear drop (A01, A02)
_SAME = ["study", "hardware", "differs"]
_SAME += [
    name for name in RunSpec.model_fields if name not in (*REPEATS, *figure.SHAPE, "schedule")
]


@dataclass(frozen=True, eq=False)
class Arm:
    """Runs that learnt alike: accuracy by repeat, at the end and early and late in training."""

    about: dict[str, Any]
    reached: dict[str, pd.Series]
    lost: int

    @property
    def batch(self) -> int:
        """Global batch size."""
        return int(self.about["global_batch_size"])


def arms(runs: pd.DataFrame) -> list[Arm]:
    """Return the arms of all accuracy studies that learnt by plain SGD, as the paper's did."""
    made = figure.made(runs)
    made = made[made["optimizer"] == "sgd"]
    made = made.assign(
        alike=made.groupby(_SAME, dropna=False).ngroup(), shape=made.groupby(figure.SHAPE).ngroup()
    )
    keys = ["alike", "schedule", "global_batch_size", "shape"]
    return [_arm(part) for _, part in made.groupby(keys, sort=True)]


def _arm(part: pd.DataFrame) -> Arm:
    good = part[(part["status"] == "completed") & ~part["diverged"] & part["top1"].notna()]
    good = good.drop_duplicates("repeat").set_index("repeat")
    early, late = (
        pd.Series([_mean(row, half) for row in good.to_dict("records")], good.index, dtype=float)
        for half in ("early", "late")
    )
    reached = {"top1": good["top1"].astype(float), "top1_early": early, "top1_late": late}
    return Arm(
        part.iloc[0].to_dict(),
        {name: values.dropna() for name, values in reached.items()},
        len(part) - len(good),
    )


def _mean(run: dict[str, Any], half: str) -> float:
    """Return the mean accuracy over the evaluations in one part of the training."""
    epochs, values = (figure.numbers(run[f"evaluated_{name}"]) for name in ("epochs", "top1"))
    early = epochs <= EARLY * run["epochs"]
    chosen = values[early if half == "early" else ~early]
    return float(np.mean(chosen)) if len(chosen) else math.nan


def difference(one: pd.Series, other: pd.Series) -> Estimate:
    """Return `one` - `other` as the logarithm of an estimate: of pairs if their repeats are equal.

    See `estimates`; n counts repeats.
    """
    if set(one.index) == set(other.index):
        return estimates.paired_ratio(np.exp(one), np.exp(other.loc[one.index]))
    return estimates.unpaired_ratio(np.exp(one), np.exp(other))


def seen(part: Part, found: Sequence[Arm], strict: bool) -> list[Seen]:
    """Return what is known of `part`: on the paper's own terms (strict), or wherever measured.

    Elsewhere, what it says of small batches is looked for at a study's smallest, what it says of
    large ones at its largest. A stated accuracy is one of ResNet50 on ImageNet, and means nothing
    for another task.
    """
    if not part.compared:
        return list(_stated(part, found)) if strict else []
    pairs = _exact(part, found) if strict else _alike(part, found)
    return [_compared(part, one, other) for one, other in pairs]


def _stated(part: Part, found: Sequence[Arm]) -> Iterator[Seen]:
    for arm in _of_the_paper(found):
        if arm.about["schedule"] == part.where["schedule"] and _gpus(arm) == part.high:
            value = estimates.middle(np.exp(arm.reached["top1"]))
            text = f"V of {_schedule(arm)} {interval(value)} points"
            relative = estimates.scaled(value, math.exp(-part.stated))
            yield Seen(part, relative, frozenset({part.high}), _place(arm), text)


def _exact(part: Part, found: Sequence[Arm]) -> Iterator[tuple[Arm, Arm]]:
    for one, other in _pairs(part, list(_of_the_paper(found))):
        if part.compared == "schedule":
            meant = one.batch == other.batch and part.low <= _gpus(one) <= part.high
        else:
            meant = (one.batch, other.batch) == (int(part.left), int(part.right))
        if meant:
            yield one, other


def _alike(part: Part, found: Sequence[Arm]) -> Iterator[tuple[Arm, Arm]]:
    """Return the pairs of each study at its end of the batches that the statement speaks of."""
    for one, other in _pairs(part, found):
        batches = {arm.batch for arm in found if arm.about["study"] == one.about["study"]}
        small, large = min(batches), max(batches)
        end = small if part.high <= LAST_SMALL_WORLD else large
        wanted = (end, end) if part.compared == "schedule" else (small, large)
        if (one.batch, other.batch) == wanted:
            yield one, other


def _pairs(part: Part, found: Sequence[Arm]) -> Iterator[tuple[Arm, Arm]]:
    """Return the pairs of arms that differ in what is compared alone, all with known ends."""
    free = "shape" if part.compared == "schedule" else "schedule"
    for one, other in itertools.product(found, found):
        sides = part.compared != "schedule" or (
            (one.about["schedule"], other.about["schedule"]) == (part.left, part.right)
        )
        same = all(one.about[name] == other.about[name] for name in ("alike", free))
        known = all(len(arm.reached[part.quantity]) for arm in (one, other))
        if one is not other and sides and same and known:
            yield one, other


def _compared(part: Part, one: Arm, other: Arm) -> Seen:
    estimate = difference(*(arm.reached[part.quantity] for arm in (one, other)))
    if part.compared == "schedule":
        names = " - ".join(style.schedule_name(arm.about["schedule"]) for arm in (one, other))
    else:
        names = f"{_schedule(one)}: batch {one.batch:,} - {other.batch:,}"
    lost = one.lost + other.lost
    names += f" ({lost} lost)" if lost else ""
    sizes = frozenset({_gpus(one), _gpus(other)})
    text = f"{names}: {interval(estimate)} points"
    return Seen(part, estimate, sizes, _place(one, part.compared == "schedule"), text)


def interval(value: Estimate) -> str:
    """Return e.g. "+1.8 [+0.4, +3.2]" percentage points; one repeat has no interval."""
    logs = [value.log_mean, *(math.log(end) for end in (value.low, value.high))]
    middle, *ends = (f"{100 * number:+.1f}" for number in logs)
    return f"{middle} [{', '.join(ends)}]" if value.n > 1 else f"{middle} (single run)"


def _of_the_paper(found: Sequence[Arm]) -> Iterator[Arm]:
    return (arm for arm in found if terms.of_learning(arm.about))


def _gpus(arm: Arm) -> int:
    """Return the number of GPUs of the paper with this batch; 64 images each."""
    return arm.batch // LOCAL_BATCH


def _schedule(arm: Arm) -> str:
    return style.schedule_name(arm.about["schedule"])


def _place(arm: Arm, with_batch: bool = True) -> str:
    about = arm.about
    batch = [f"batch {arm.batch:,}"] if with_batch else []
    names = [style.dataset_name(about["dataset"]), style.model_name(about["model"])]
    return ", ".join([about["study"], *names, *batch])
