"""What it costs to know where a step's time goes: the clock's marks against a clock without them.

    python benchmarks/marks.py

The same network trains the same synthetic batches with either clock, in turn, in one process; the
order changes from round to round. The result is the median over rounds of the time without marks /
the time with them. Since that is near the noise of a shared machine, a mark is also timed by
itself, and its part of a step computed. Takes about five minutes. Target: at least 0.99.
"""

import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from loop_overhead import CASES, ROUNDS, in_turns, throughput_ratios
from torch import nn

from ddl_core import accelerator, train
from ddl_core.loaders.synthetic import Synthetic
from ddl_core.optim import make_optimizer
from ddl_core.provenance import host, provenance
from ddl_core.registry import resolve
from ddl_core.spec import RunSpec
from ddl_core.spent import Phase
from ddl_core.strategies.single import Single
from ddl_core.timing import Clock

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


def compare(spec: RunSpec) -> dict[str, float]:
    """Return the ratios of one case, and a mark's part of a step."""
    accelerator.configure(spec)
    group = Single(spec)
    network = resolve("model", spec.model)(spec.classes)
    trainee = train.Trainee.build(spec, group, network, make_optimizer(spec, network))
    loader = Synthetic(spec, None, "train", 0, 1, group.device)

    def epoch(clock: type[Clock]) -> Callable[[], object]:
        def work() -> object:
            train.Clock = clock  # type: ignore[misc]
            return train.train_one_epoch(trainee, loader, 0, lambda done, steps: None)

        return work

    took = in_turns({"plain": epoch(PlainClock), "marked": epoch(Clock)})
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
    """Measure all cases; print them and store them beside this file."""
    results = {name: compare(spec) for name, spec in CASES.items()}
    for name, result in results.items():
        print(
            f"{name}: {result['throughput_ratio_wall']:.3f} of a clock without marks by wall "
            f"clock, {result['throughput_ratio_cpu']:.3f} by CPU time (median of {ROUNDS} "
            f"rounds); {MARKS_PER_STEP} marks take {result['marks_share_of_step']:.5%} of a step"
        )
    target = Path(__file__).parent / "results" / "marks.json"
    target.parent.mkdir(exist_ok=True)
    content = {"results": results, "provenance": provenance(), "system": host()}
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
