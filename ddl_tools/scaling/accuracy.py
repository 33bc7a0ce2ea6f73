"""Accuracy by global batch, stated or measured; between two known batches a range.

Nothing is fitted. The one assumption is that accuracy falls as the batch grows (the paper's O21;
docs/explanation/large-batches.md).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ddl_tools.estimate import Estimate
from ddl_tools.records.paths import PAPER
from ddl_tools.scaling.measured import Measured
from ddl_tools.scaling.paper import ACCURACY_MODEL, EPOCHS, read_rows

MARGIN = 1  # percentage points within which accuracies are equal (docs/explanation/statistics.md)


@dataclass(frozen=True)
class Accuracy:
    """Top-1 accuracy in percent by schedule and global batch.

    ``level``: it is the same below the smallest batch, as the paper states.
    """

    known: Mapping[str, Mapping[int, Estimate]]
    source: str
    level: bool = False

    def at(self, batch: int) -> tuple[tuple[str, ...], Estimate | None]:
        """Return the best schedules at a batch, equal within `MARGIN`, and the accuracy they reach.

        None below the smallest known batch, unless accuracy is level there.
        """
        found = {name: self._at(points, batch) for name, points in self.known.items()}
        spans = {name: span for name, span in found.items() if span}
        if not spans:
            return (), None
        best = max(spans.values(), key=lambda span: (span.value, span.low))
        equal = [name for name, span in spans.items() if span.value > best.value - MARGIN]
        return tuple(equal), best

    def _at(self, points: Mapping[int, Estimate], batch: int) -> Estimate | None:
        batches = sorted(points)
        below = [one for one in batches if one <= batch]
        above = [one for one in batches if one >= batch]
        if not below:
            return points[batches[0]] if self.level else None
        before = points[below[-1]]
        if not above:
            return Estimate(before.value, 0.0, before.high)
        after = points[above[0]]
        places = np.log([below[-1], above[0]])
        value = float(np.interp(np.log(batch), places, [before.value, after.value]))
        return Estimate(value, min(before.low, after.low), max(before.high, after.high))


def of_paper(model: str, dataset: str, epochs: int) -> Accuracy | None:
    """Return what the paper states of a network on ImageNet after 90 epochs, else None."""
    rows = [row for row in read_rows(PAPER / "accuracy.csv") if row["model"] == model]
    if not rows or dataset != "imagenet" or epochs != EPOCHS:
        return None
    reached = [
        (row["schedule"], int(row["global_batch_size"]), float(row["value"])) for row in rows
    ]
    ids = ", ".join(sorted({row["statement"] for row in rows}))
    return Accuracy(_spans(reached), f"the paper's {ids}", level=True)


def paper_loss() -> int:
    """Return the smallest batch with which the paper's network lost more than `MARGIN`."""
    stated = of_paper(ACCURACY_MODEL, "imagenet", EPOCHS)
    assert stated is not None
    best = max(span.value for points in stated.known.values() for span in points.values())
    batches = {batch for points in stated.known.values() for batch in points}
    reached = {batch: span for batch in batches if (span := stated.at(batch)[1])}
    return min(batch for batch, span in reached.items() if span.value < best - MARGIN)


def of_records(runs: Iterable[Measured], epochs: int) -> Accuracy | None:
    """Return what some runs reached with SGD after this number of epochs, else None."""
    reached, studies = [], set()
    for record, _, rows in runs:
        spec = record.spec
        if (spec.epochs, spec.optimizer) != (epochs, "sgd"):
            continue
        last = [row.top1 for row in rows if (row.phase, row.epoch) == ("eval", epochs - 1)]
        if last and last[-1] is not None:
            reached.append((spec.schedule, record.global_batch_size, 100 * last[-1]))
            studies.add(record.study)
    source = f"records of {', '.join(sorted(studies))}"
    return Accuracy(_spans(reached), source) if reached else None


def _spans(reached: Iterable[tuple[str, int, float]]) -> dict[str, dict[int, Estimate]]:
    """Return the mean of repeats by schedule and batch, and their range widened by `MARGIN`."""
    values: dict[str, dict[int, list[float]]] = {}
    for schedule, batch, percent in reached:
        values.setdefault(schedule, {}).setdefault(batch, []).append(percent)
    return {
        schedule: {
            batch: Estimate(
                float(np.mean(own)), max(min(own) - MARGIN, 0.0), min(max(own) + MARGIN, 100.0)
            )
            for batch, own in batches.items()
        }
        for schedule, batches in values.items()
    }
