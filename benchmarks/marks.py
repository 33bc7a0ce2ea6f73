"""What it costs to know where a step's time goes: the clock's marks against a clock without them.

    python -m benchmarks.marks

The same small network trains the same synthetic batches with either clock, in turn, in one process,
in windows of a few short steps. A mark is also timed by itself, and its part of a step computed.
Target: at least 0.99 of the throughput without marks.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from benchmarks.interleaved import interleave, ratio, say, seconds, stored
from benchmarks.loop_overhead import SHORT_STEPS
from ddl_core import device, step
from ddl_core import loop as epoch_loop
from ddl_core.device import make_clock
from ddl_core.loaders.synthetic import Synthetic
from ddl_core.optim import make_optimizer
from ddl_core.registry import resolve
from ddl_core.step import marking_backward
from ddl_core.strategies.base import Single
from ddl_core.timing import Clock, Phase

WITH, WITHOUT = "with marks", "without"
TARGET = 0.99
MINUTES = 3
CALLS = 200_000
MARKS_PER_STEP = 5


class PlainClock(Clock):
    """The clock as it would be if it marked the ends of steps only."""

    def _mark(self, phase: Phase) -> None:
        if phase == "update":
            super()._mark(phase)


def compare() -> dict[str, Any]:
    """Return ratio and windows, and a mark's part of a step."""
    device.configure(SHORT_STEPS)
    group = Single(SHORT_STEPS)
    network = resolve("model", SHORT_STEPS.model)(SHORT_STEPS.classes)
    trainee = step.TrainState(SHORT_STEPS, group, network, make_optimizer(SHORT_STEPS, network))
    loader = Synthetic(SHORT_STEPS, None, "train", 0, 1, group.device)

    def epoch(marks: bool) -> Callable[[], object]:
        def work() -> object:
            epoch_loop.Clock = Clock if marks else PlainClock  # type: ignore[misc]
            step.marking_backward = marking_backward if marks else lambda *_: nullcontext()
            return epoch_loop.EpochLoop(trainee).train(loader, 0)

        return work

    took = interleave({WITHOUT: epoch(marks=False), WITH: epoch(marks=True)}, MINUTES)
    step_s = statistics.median(window.wall for window in took[WITH]) / len(loader)
    return {
        "ratios": [ratio(took, WITH, WITHOUT, TARGET)],
        "step_s": step_s,
        "marks_share_of_step": MARKS_PER_STEP * mark_seconds(group) / step_s,
        "windows_s": seconds(took),
    }


def mark_seconds(group: Single) -> float:
    """Return the seconds of one mark: the largest of the calls that set one, the gradient's."""
    clock = make_clock(group)
    before = time.perf_counter()
    for _ in range(CALLS):
        clock.backward_done()
    return (time.perf_counter() - before) / CALLS


def measure() -> dict[str, Any]:
    """Measure and print."""
    result = compare()
    print(
        f"{say(result['ratios'][0])}; {MARKS_PER_STEP} marks take "
        f"{result['marks_share_of_step']:.5%} of a step of {1000 * result['step_s']:.0f} ms"
    )
    return result


if __name__ == "__main__":
    stored("marks", measure)
