"""What it costs to know where a step's time goes: the clock's marks against a clock without them.

    python benchmarks/marks.py

The same small network trains the same synthetic batches with either clock, in turn, in one process;
the order changes from round to round. Rounds are of a few short steps, since the speed of a shared
machine changes within seconds, and many. The result is the median over rounds of the time without
marks / the time with them. A mark is also timed by itself, and its part of a step computed. Takes
two to five minutes. Target: at least 0.99.
"""

import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from loop_overhead import SHORT_STEPS, in_turns, throughput_ratios
from torch import nn

from ddl_core.records.profile import Phase
from ddl_core.records.provenance import host, provenance
from ddl_core.spec.registry import resolve
from ddl_core.train import device, loop
from ddl_core.train.clock import Clock
from ddl_core.train.loaders.synthetic import Synthetic
from ddl_core.train.optim import make_optimizer
from ddl_core.train.strategies.single import Single

ROUNDS = 201
SPEC = SHORT_STEPS.model_copy(update={"train_images": 32})
CALLS = 200_000
MARKS_PER_STEP = 5


class PlainClock(Clock):
    """The clock as it would be if it marked the ends of steps only."""

    def _mark(self, phase: Phase) -> None:
        if phase == "update":
            super()._mark(phase)

    def watching(self, network: nn.Module) -> AbstractContextManager[None]:
        """Watch nothing."""
        return nullcontext()


def compare() -> dict[str, float]:
    """Return the ratios, and a mark's part of a step."""
    device.configure(SPEC)
    group = Single(SPEC)
    network = resolve("model", SPEC.model)(SPEC.classes)
    trainee = loop.Trainee.build(SPEC, group, network, make_optimizer(SPEC, network))
    loader = Synthetic(SPEC, None, "train", 0, 1, group.device)

    def epoch(clock: type[Clock]) -> Callable[[], object]:
        def work() -> object:
            loop.Clock = clock  # type: ignore[misc]
            return loop.train_one_epoch(trainee, loader, 0, lambda done, steps: None)

        return work

    took = in_turns({"plain": epoch(PlainClock), "marked": epoch(Clock)}, ROUNDS)
    step_s = statistics.median(wall for wall, _ in took["marked"]) / len(loader)
    return {
        **throughput_ratios(took["plain"], took["marked"]),
        "step_s": step_s,
        "marks_share_of_step": MARKS_PER_STEP * mark_seconds(group) / step_s,
    }


def mark_seconds(group: Single) -> float:
    """Return the seconds of one mark: the largest of the calls that set one, the gradient's."""
    clock = Clock(group)
    parameter = torch.ones(1)
    before = time.perf_counter()
    for _ in range(CALLS):
        clock._gradients_are_there(parameter)
    return (time.perf_counter() - before) / CALLS


def main() -> None:
    """Measure, print, store."""
    result = compare()
    print(
        f"{result['throughput_ratio_wall']:.3f} of a clock without marks by wall clock, "
        f"{result['throughput_ratio_cpu']:.3f} by CPU time (median of {ROUNDS} rounds); "
        f"{MARKS_PER_STEP} marks take {result['marks_share_of_step']:.5%} of a step of "
        f"{1000 * result['step_s']:.0f} ms"
    )
    target = Path(__file__).parent / "results" / "marks.json"
    content = {**result, "provenance": provenance(), "system": host()}
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
