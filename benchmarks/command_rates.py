"""How well windows of printed lines show known rates, on a simulated clock.

    python -m benchmarks.command_rates

Two scripts, one of which is truly faster, print a line a step. Both are stopped and continued in
turn, as in an interleaved study: a step that a pause cuts goes on after it, its line comes late.
Starts and windows vary as in `benchmarks/coverage.py`; each step varies by itself, and a line takes
up to some milliseconds to arrive. Counted is how often the 95 % interval over starts contains the
true ratio. Steps last from 20 ms to longer than a window: a script may print an epoch.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.coverage import DISTURBED, start
from benchmarks.interleaved import stored
from ddl_tools.analysis import estimates
from ddl_tools.estimate import Estimate
from ddl_tools.rank.reports import Report, window

SEED = 20261130
STUDIES = 200
STARTS, ROUNDS = 4, 3
TRUE = 1.1  # how many times as fast the second script is
STEPS_S = (0.02, 0.3, 2.0, 8.0)
STEP_SD = 0.05  # of the logarithm of a step
ARRIVAL_S = 0.003  # at most
IMAGES = 64
RANKS = 2


class Script:
    """A script that prints after each step, and that can be stopped."""

    def __init__(self, generator: np.random.Generator, step_s: float) -> None:
        self._generator, self.step_s = generator, step_s
        self._left_s = 0.0  # of the step at which it was stopped

    def reports(self, speed: float) -> Iterator[Report]:
        """Yield its lines from the moment at which it goes on; after a pause, not the first one."""
        now, first = 0.0, True
        while True:
            whole = self.step_s / speed * np.exp(self._generator.normal(0, STEP_SD))
            now += self._left_s if first and self._left_s else whole
            if not first:
                for rank in range(RANKS):
                    at = now + self._generator.uniform(0, ARRIVAL_S)
                    yield Report(at, rank, IMAGES, False)
            first = False
            self._left_s = self._generator.uniform(0, whole)  # if it is stopped now


def study(generator: np.random.Generator, step_s: float) -> Estimate:
    """Return the ratio of both scripts, over starts."""
    means = []
    for _ in range(STARTS):
        logs, good = start(generator, ROUNDS, disturbed=DISTURBED, arms=2)
        scripts = [Script(generator, step_s), Script(generator, step_s / TRUE)]
        speeds = np.exp(logs)
        rates = np.array(
            [[rate(one.reports(row[place])) for place, one in enumerate(scripts)] for row in speeds]
        )
        means.append(np.exp(np.log(rates[good]).mean(axis=0)))
    found = np.array(means)
    return estimates.paired_ratio(found[:, 1], found[:, 0])


def rate(reports: Iterator[Report]) -> float:
    """Return the images per second of one window."""
    found = window(reports)
    return found.images / found.wall_s


def measure() -> dict[str, Any]:
    """Simulate studies for each length of a step."""
    generator = np.random.default_rng(SEED)
    results: dict[str, dict[str, float]] = {}
    for step_s in STEPS_S:
        ratios = [study(generator, step_s) for _ in range(STUDIES)]
        results[f"steps of {step_s:g} s"] = found = {
            "covered": float(np.mean([one.low <= TRUE <= one.high for one in ratios])),
            "bias": float(np.median([one.value for one in ratios]) / TRUE - 1),
            "half_width": float(np.median([one.high / one.value - 1 for one in ratios])),
        }
        print(
            f"steps of {step_s:g} s: {found['covered']:.1%} of {STUDIES} intervals cover, median "
            f"{found['bias']:+.2%} off, half-width {found['half_width']:.1%}"
        )
    return {"studies": STUDIES, "starts": STARTS, "cases": results}


if __name__ == "__main__":
    stored("command_rates", measure)
