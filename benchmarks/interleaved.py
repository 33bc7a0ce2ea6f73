"""Interleaved measurements: the ratio of times of works, and where a result is kept.

What the speed of a shared machine does within a minute is larger than most of what is asked here,
so works are compared in short interleaved windows, forth and back. The windows of one round are a
pair, and a ratio is the geometric mean over rounds with the interval of Student's t on its
logarithm (`ddl_tools.analysis.estimates`), by both clocks: wall and CPU seconds.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddl_tools.analysis.estimates import paired_ratio
from ddl_tools.estimate import Estimate
from ddl_tools.records.provenance import host, provenance
from ddl_tools.records.storage import write_atomically

RESULTS = Path(__file__).parent / "results"
CLOCKS = ("wall", "cpu")


@dataclass(frozen=True)
class Took:
    """Seconds of one window, CPU seconds of all threads of this process."""

    wall: float
    cpu: float


Works = Mapping[str, Callable[[], object]]
Windows = dict[str, list[Took]]


def timed(work: Callable[[], object]) -> Took:
    """Return what ``work()`` took."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def interleave(
    works: Works,
    minutes: float,
    measure: Callable[[Callable[[], object]], Took] = timed,
    least: int = 2,
) -> Windows:
    """Return what each work took, round by round, after a first round that does not count.

    No round begins after `minutes`, but `least` rounds are made at least. How many there are must
    not depend on what they say, or the interval would not be one.
    """
    took: Windows = {name: [] for name in works}
    deadline = time.monotonic() + 60 * minutes
    number = 0
    while number <= least or time.monotonic() < deadline:
        for name in order(list(works), number):
            window = measure(works[name])
            if number:
                took[name].append(window)
        number += 1
    return took


def order(names: Sequence[str], number: int) -> Sequence[str]:
    """Return whose turn it is in a round: A B C, C B A, then B C A, A C B, and so on.

    If each forth and back began with A, those at the ends would always have two windows in a row:
    their ratios would be no independent observations, and the intervals too narrow.
    """
    first = number // 2 % len(names)
    moved = [*names[first:], *names[:first]]
    return moved[::-1] if number % 2 else moved


def ratio(took: Windows, of: str, to: str, target: float | None = None) -> dict[str, Any]:
    """Return how many times faster `of` was than `to`, by both clocks.

    Returns
    -------
    dict
        ``of``, ``to``, ``target``, ``n`` (rounds), and for each of `CLOCKS` ``ratio``, ``low`` and
        ``high`` (95 %).
    """
    clocks = {clock: _faster(took[of], took[to], clock) for clock in CLOCKS}
    return {
        "of": of,
        "to": to,
        "target": target,
        "n": len(took[of]),
        **{clock: interval(found) for clock, found in clocks.items()},
    }


def _faster(of: Sequence[Took], to: Sequence[Took], clock: str) -> Estimate:
    return paired_ratio([getattr(one, clock) for one in to], [getattr(one, clock) for one in of])


def interval(found: Estimate) -> dict[str, float]:
    """Return ratio (or value), low and high of an estimate."""
    return {"ratio": found.value, "low": found.low, "high": found.high}


def estimate_of(found: Mapping[str, float], name: str = "ratio") -> Estimate:
    """Return the estimate of what `interval` returned, or of another value with low and high."""
    return Estimate(found[name], found["low"], found["high"])


def judged(found: Mapping[str, float], target: float) -> str:
    """Return whether a target was reached, by the whole interval and not its middle alone."""
    if found["low"] >= target:
        return "reached"
    return "missed" if found["high"] < target else "inconclusive"


def say(row: Mapping[str, Any]) -> str:
    """Return one ratio as a line of text."""
    clocks = ", ".join(f"{shown(row[clock])} by {clock}" for clock in CLOCKS)
    return f"{row['of']} / {row['to']}: {clocks} (n = {row['n']})"


def shown(found: Mapping[str, float]) -> str:
    """Return ratio and interval, rounded to a digit that is small beside the interval."""
    width = (found["high"] - found["low"]) / 4
    digits = min(4, max(2, math.ceil(-math.log10(width)))) if width > 0 else 2
    return f"{estimate_of(found):.{digits}f}"


def seconds(took: Windows) -> dict[str, dict[str, list[float]]]:
    """Return all windows as they are stored: seconds, to the microsecond."""
    return {
        name: {clock: [round(getattr(one, clock), 6) for one in windows] for clock in CLOCKS}
        for name, windows in took.items()
    }


def stored(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure, and keep the result with its commit as ``results/NAME.json``; return it.

    Only from a clean tree: what git does not know, nobody can measure again.
    """
    code = provenance()
    clean = code["git_dirty"] is False
    if not clean:
        print("the result will be printed, not stored: commit or stash your changes first")
    content = {**measure(), "provenance": code, "system": host()}
    if clean:
        RESULTS.mkdir(exist_ok=True)
        write_atomically(RESULTS / f"{name}.json", json.dumps(content, indent=1) + "\n")
    return content
