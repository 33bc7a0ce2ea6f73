"""How often 95 % intervals of a ratio contain the true one, by simulation.

    python -m benchmarks.coverage

Invented windows of arms that are all equally fast, on a machine that drifts. The logarithm of a
window's throughput is the sum of four parts: a drift common to all arms, an autoregression of
first order; a noise of its own; an effect of the arm's start, the same in all its windows; and, in
a few windows, a disturbance that costs 40 % of the throughput. Sizes are those of the laptop
studies: windows a second apart correlate at 0.5, a pair of windows varies by 0.06, another start
changes a ratio by 0.025 (standard deviations of the log ratio). The drift is quicker or slower,
tails are normal or heavy (Student's t of 3 degrees of freedom). Fifteen arms take turns in random
order; one of them is the reference. Every interval should contain 1, 95 times out of 100, and every
word but "equivalent" and "inconclusive" is a false one. Takes less than a minute.

Compared are the interval over starts, disturbed rounds left out, and that over the windows of one
start, which does not contain another start.
"""

from collections.abc import Sequence

import numpy as np
from scipy.signal import lfilter

from benchmarks.interleaved import stored
from ddl_tools.analysis import estimates
from ddl_tools.estimate import Estimate

SEED = 20261124
ARMS = 15
DESIGNS = ((3, 7), (4, 2), (5, 3))  # starts, and counted rounds in each
ONE_START = 17  # rounds, of the laptop study when it had one start
STUDIES = 500
PAIR_SD = 0.06
START_SD = 0.025
CORRELATION = 0.5  # of windows a second apart
DISTURBED = 0.01  # of all windows
DISTURBANCE = 0.6  # what is left of a window's throughput
# Share of the variance that drifts; the rest is a window's own.
DRIFTS = {"quick": 1.0, "slow": 0.6}
TAILS = {"normal": None, "heavy": 3}


def start(
    generator: np.random.Generator,
    rounds: int,
    *,
    drift: str = "slow",
    tails: str = "heavy",
    disturbed: float = DISTURBED,
    arms: int = ARMS,
) -> tuple[np.ndarray, np.ndarray]:
    """Return log throughputs of one start, (rounds, arms), truly all 0; which rounds are good."""
    share = DRIFTS[drift]
    persistence = CORRELATION / share
    pushes, own = (_noise(generator, rounds * arms, TAILS[tails]) for _ in range(2))
    pushes[1:] *= np.sqrt(1 - persistence**2)
    common = lfilter([1.0], [1.0, -persistence], pushes)
    windows = np.sqrt(share) * common + np.sqrt(1 - share) * own
    logs = np.empty((rounds, arms))
    for number, measured in enumerate(windows.reshape(rounds, arms)):
        logs[number, generator.permutation(arms)] = PAIR_SD / np.sqrt(2) * measured
    logs += generator.normal(0, START_SD / np.sqrt(2), arms)
    hit = generator.random((rounds, arms)) < disturbed
    return logs + np.log(DISTURBANCE) * hit, ~hit.any(axis=1)


def _noise(generator: np.random.Generator, size: int, df: int | None) -> np.ndarray:
    if df is None:
        return generator.normal(size=size)
    return generator.standard_t(df, size=size) / np.sqrt(df / (df - 2))


def over_starts(starts: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Estimate]:
    """Return the ratio of every arm to the first one: over starts, of good rounds only."""
    means = np.array([logs[good].mean(axis=0) for logs, good in starts if good.any()])
    means = means.reshape(-1, starts[0][0].shape[1])
    return [estimates.paired_ratio(arm, np.exp(means[:, 0])) for arm in np.exp(means.T[1:])]


def over_windows(logs: np.ndarray) -> list[Estimate]:
    """Return the same over the windows of one start, as if they were all that varies."""
    return [estimates.paired_ratio(arm, np.exp(logs[:, 0])) for arm in np.exp(logs.T[1:])]


def study(
    generator: np.random.Generator, starts: int, rounds: int, **machine: str
) -> list[Estimate]:
    """Return the ratios of a study of several starts."""
    return over_starts([start(generator, rounds, **machine) for _ in range(starts)])


def coverage(
    generator: np.random.Generator,
    starts: int,
    rounds: int,
    studies: int = STUDIES,
    **machine: str,
) -> dict[str, float]:
    """Return what the intervals of many studies do: `summary`."""
    return summary([study(generator, starts, rounds, **machine) for _ in range(studies)])


def coverage_of_one_start(
    generator: np.random.Generator, rounds: int = ONE_START, studies: int = STUDIES, **machine: str
) -> dict[str, float]:
    """Return the same of intervals over the windows of one start."""
    return summary([over_windows(start(generator, rounds, **machine)[0]) for _ in range(studies)])


def summary(studies: Sequence[Sequence[Estimate]]) -> dict[str, float]:
    """Return how often intervals contain 1 and words are false, and the median half-width.

    Of ratios that have an interval; ``covered_worst_arm`` is that of the arm with the fewest.
    """
    covers = np.array([[one.low <= 1 <= one.high for one in ratios if one.n > 1]
                       for ratios in studies if ratios[0].n > 1])  # fmt: skip
    known = [one for ratios in studies for one in ratios if one.n > 1]
    words = [estimates.decision(one) for one in known]
    false = [word in (estimates.GREATER, estimates.LESS) for word in words]
    return {
        "covered": float(covers.mean()),
        "covered_worst_arm": float(covers.mean(axis=0).min()),
        "false_words": float(np.mean(false)),
        "half_width": float(np.median([one.high / one.value - 1 for one in known])),
    }


def simulate() -> dict[str, object]:
    """Return all shares, each with its own stream of random numbers."""
    streams = iter(np.random.default_rng(SEED).spawn(1000))
    machines = [{"drift": drift, "tails": tails} for drift in DRIFTS for tails in TAILS]
    return {
        "studies": STUDIES,
        "arms": ARMS,
        "pair_log_sd": PAIR_SD,
        "start_log_sd": START_SD,
        "disturbed": DISTURBED,
        "over_starts": [
            {"starts": starts, "rounds": rounds, **machine}
            | coverage(next(streams), starts, rounds, **machine)
            for starts, rounds in DESIGNS
            for machine in machines
        ],
        "one_start": [
            {"rounds": ONE_START, **machine} | coverage_of_one_start(next(streams), **machine)
            for machine in machines
        ],
    }


def measure() -> dict[str, object]:
    """Simulate and print."""
    result = simulate()
    for name in ("over_starts", "one_start"):
        print(name)
        for cell in result[name]:  # type: ignore[attr-defined]
            print("  ", ", ".join(f"{key} {value:.3g}" if isinstance(value, float) else
                                  f"{key} {value}" for key, value in cell.items()))  # fmt: skip
    return result


if __name__ == "__main__":
    stored("coverage", measure)
