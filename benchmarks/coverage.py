"""Whether 95 % intervals cover 95 %, and how often equal arms are called different.

    python -m benchmarks.coverage

Invented windows of arms that are all equally fast, on a machine that drifts: the logarithm of a
window's throughput is a drift common to all arms, an autoregression of first order, and a noise of
its own. Windows a second apart correlate at 0.5, as those of three earlier laptop runs did; the
drift is quicker or slower, tails are normal or heavy (Student's t of 3 degrees of freedom). Fifteen
arms take turns; one of them is the reference. Every interval should then contain 1, 95 times out of
100, and every decision is a false one. Takes less than a minute.

Two orders are compared. ``random``: each round in an order of its own. ``forth and back``: A B C
... C B A. There the arms at both ends measure twice in a row, which are hardly two observations:
their intervals are too narrow. Target: 93 to 97 % on average over the arms, at most 5 % decided.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.signal import lfilter

from benchmarks.turns import stored
from ddl_core.analysis import estimates
from ddl_core.analysis.estimates import Estimate

SEED = 20261122
ARMS = 15
ROUNDS = (6, 8, 10, 12, 20)
SIZES = (1, 2, 4, 8)
BLOCKS = 500
LOG_SD = 0.1
CORRELATION = 0.5  # of windows a second apart
# Share of the variance that drifts; the rest is a window's own.
DRIFTS = {"quick": 1.0, "slow": 0.6}
TAILS = {"normal": None, "heavy": 3}
ORDERS = ("random", "forth and back")


def order(generator: np.random.Generator, arms: int, number: int, kind: str) -> np.ndarray:
    """Return the arms, from 0, in the order of one round."""
    if kind == "random":
        return generator.permutation(arms)
    return np.arange(arms) if number % 2 == 0 else np.arange(arms)[::-1]


def block(
    generator: np.random.Generator,
    rounds: int,
    *,
    drift: str = "slow",
    tails: str = "heavy",
    kind: str = "random",
    arms: int = ARMS,
) -> np.ndarray:
    """Return the throughputs of one block, (rounds, arms), with 1 as the true one of all arms."""
    share = DRIFTS[drift]
    persistence = CORRELATION / share
    pushes, own = (_noise(generator, rounds * arms, TAILS[tails]) for _ in range(2))
    pushes[1:] *= np.sqrt(1 - persistence**2)
    common = lfilter([1.0], [1.0, -persistence], pushes)
    logs = LOG_SD * (np.sqrt(share) * common + np.sqrt(1 - share) * own)
    measured = np.empty((rounds, arms))
    for number, windows in enumerate(logs.reshape(rounds, arms)):
        measured[number, order(generator, arms, number, kind)] = windows
    return np.exp(measured)


def _noise(generator: np.random.Generator, size: int, df: int | None) -> np.ndarray:
    if df is None:
        return generator.normal(size=size)
    return generator.standard_t(df, size=size) / np.sqrt(df / (df - 2))


def ratios(block: np.ndarray) -> list[Estimate]:
    """Return the ratio of every arm of a block to the first one."""
    return [estimates.paired_ratio(arm, block[:, 0]) for arm in block.T[1:]]


def coverage(
    generator: np.random.Generator, rounds: int, blocks: int = BLOCKS, **machine: str
) -> list[float]:
    """Return how often the interval of each arm contains 1."""
    hits = np.zeros(ARMS - 1)
    for _ in range(blocks):
        found = ratios(block(generator, rounds, **machine))
        hits += [ratio.low <= 1 <= ratio.high for ratio in found]
    return list(hits / blocks)


def false_panels(generator: np.random.Generator, rounds: int, blocks: int = 4 * BLOCKS) -> float:
    """Return how often any arm of a block is called greater or less than the reference."""
    return _share(_any(ratios(block(generator, rounds))) for _ in range(blocks))


def false_claims(
    generator: np.random.Generator, rounds: int, sizes: int, claims: int = 4 * BLOCKS
) -> float:
    """Return how often a claim "greater" over some sizes is decided, one way or the other.

    Every size has a block of its own, of four arms, and two of these are compared.
    """

    def claim() -> bool:
        blocks = [block(generator, rounds, arms=4) for _ in range(sizes)]
        return _any([estimates.paired_ratio(arms[:, 1], arms[:, 0]) for arms in blocks])

    return _share(claim() for _ in range(claims))


def _any(family: list[Estimate]) -> bool:
    return bool({estimates.GREATER, estimates.LESS} & set(estimates.decisions(family)))


def _share(decided: Iterator[bool]) -> float:
    return float(np.mean(list(decided)))


def formerly(generator: np.random.Generator, draws: int = 20_000) -> dict[str, float]:
    """Return the same of what this project did before, with three runs of each arm.

    The percentile bootstrap of a median of three is the range of the three (a resample has the
    smallest as its median with probability 7/27, far above 2.5 %); that of a ratio of two medians
    goes from the smallest by the largest to the largest by the smallest (49/729). A claim was
    decided where two intervals lay apart, at any size. Runs are far apart, so they are independent.
    """
    one, other = np.exp(generator.normal(0, LOG_SD, size=(2, draws, max(SIZES), 3)))
    above, below = one.min(-1) > other.max(-1), one.max(-1) < other.min(-1)
    apart = above | below
    first, second = one[:, 0], other[:, 0]
    low, high = first.min(-1) / second.max(-1), first.max(-1) / second.min(-1)
    return {
        "covered_by_interval_of_median": float(
            np.mean((first.min(-1) <= 1) & (first.max(-1) >= 1))
        ),
        "covered_by_interval_of_ratio": float(np.mean((low <= 1) & (high >= 1))),
        **{
            f"decided_over_{sizes}_sizes": float(np.mean(apart[:, :sizes].any(-1)))
            for sizes in SIZES
        },
    }


def simulate() -> dict[str, object]:
    """Return all shares, each with its own stream of random numbers."""
    streams = iter(np.random.default_rng(SEED).spawn(1000))
    cells = [
        {"order": kind, "drift": drift, "tails": tails, "rounds": rounds}
        | _summary(coverage(next(streams), rounds, drift=drift, tails=tails, kind=kind))
        for kind in ORDERS
        for drift in DRIFTS
        for tails in TAILS
        for rounds in ROUNDS
    ]
    return {
        "blocks": BLOCKS,
        "arms": ARMS,
        "coverage": cells,
        "false_panels": {rounds: false_panels(next(streams), rounds) for rounds in ROUNDS},
        "false_claims": [
            {"rounds": n, "sizes": k, "decided": false_claims(next(streams), n, k)}
            for n in (min(ROUNDS), max(ROUNDS))
            for k in SIZES
        ],
        "formerly": formerly(next(streams)),
    }


def _summary(covered: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(covered)), "worst_arm": float(np.min(covered))}


def measure() -> dict[str, object]:
    """Simulate and print."""
    result = simulate()
    for cell in result["coverage"]:  # type: ignore[attr-defined]
        print("{order}, {drift} drift, {tails} tails, {rounds} rounds: covered {mean:.3f}, "
              "worst arm {worst_arm:.3f}".format(**cell))  # fmt: skip
    print("decided falsely:", result["false_panels"], result["false_claims"])
    print("formerly, n = 3:", result["formerly"])
    return result


if __name__ == "__main__":
    stored("coverage", measure)
