"""How often a search of `ddl recommend` drops the best configuration, by simulation.

    python -m benchmarks.recommend_errors

Invented throughputs with the noise of `benchmarks.coverage`: drift, effects of starts, heavy tails,
disturbed epochs. One configuration is faster than all others by the margin, five per cent; the
others are equal, or 10 % slower each than the one before. A search goes on for some starts, with
two counted rounds in each, and measures only what is left. Takes about a minute.
"""

import math

import numpy as np

from benchmarks.coverage import DRIFTS, TAILS, start
from benchmarks.interleaved import stored
from ddl_tools.analysis.estimates import MARGIN
from ddl_tools.recommend.race import Observation, race

SEED = 20261126
SEARCHES = 200
ROUNDS = 2
STARTS = 6
FIELDS = {"equal": 0.0, "falling": math.log(0.9)}  # from each configuration to the next slower one
SIZES = (3, 10)


def search(
    generator: np.random.Generator, size: int, step: float, starts: int = STARTS, **machine: str
) -> list[int]:
    """Return what is left of configurations 0 (the best) to `size` - 1 after some starts."""
    effects = [0.0, *(-math.log1p(MARGIN) + step * number for number in range(size - 1))]
    left, seen = list(range(size)), []
    for number in range(starts):
        logs, good = start(generator, ROUNDS, arms=size, **machine)
        if good.any():
            means = logs[good].mean(axis=0) + effects
            seen += [Observation(one, f"{number:02}", math.exp(means[one])) for one in left]
            left = race(seen).left
    return left


def errors(
    generator: np.random.Generator, size: int, step: float, searches: int = SEARCHES, **machine: str
) -> dict[str, float]:
    """Return the share of searches that drop the best, and how many configurations are left."""
    left = [search(generator, size, step, **machine) for _ in range(searches)]
    return {
        "dropped_best": float(np.mean([0 not in one for one in left])),
        "left": float(np.mean([len(one) for one in left])),
    }


def measure() -> dict[str, object]:
    """Simulate and print."""
    streams = iter(np.random.default_rng(SEED).spawn(100))
    cells = [
        {"size": size, "field": field, "drift": drift, "tails": tails}
        | errors(next(streams), size, step, drift=drift, tails=tails)
        for size in SIZES
        for field, step in FIELDS.items()
        for drift in DRIFTS
        for tails in TAILS
    ]
    for cell in cells:
        print(", ".join(f"{name} {value}" for name, value in cell.items()))
    return {"searches": SEARCHES, "starts": STARTS, "rounds": ROUNDS, "cells": cells}


if __name__ == "__main__":
    stored("recommend_errors", measure)
