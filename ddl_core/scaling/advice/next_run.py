"""Which single extra run would reduce the doubt most.

Doubt is the width of what is thinkable of the advised training's time: the logarithm of the longest
over the shortest epoch that the admitted sets of parameters predict. An extra run would give a
number with the noise of a run. Were one of the admitted sets the truth, the number would be the one
that it predicts, and all sets would be refused that predict one more than 1.645 noises away
(two-sided, 90 %). The width of what is left, averaged over all sets in the place of the truth, is
the doubt expected after that run: preposterior analysis (Raiffa and Schlaifer 1961, Applied
Statistical Decision Theory), with a width in the place of a loss, and equal weights, since a
profile has no others.

Of the runs that reach nine tenths of the largest reduction the one of the fewest node-hours counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ddl_core.scaling.advice.candidates import SECONDS, Candidate
from ddl_core.scaling.advice.evidence import Evidence
from ddl_core.scaling.fit import TWO_SIDED, Values

_NEARLY = 0.9  # of the largest reduction
_LEAST = 0.01  # a width that is told; less is no doubt


@dataclass(frozen=True)
class NextRun:
    """An epoch of training, or of the loader alone, on so many ranks.

    ``before`` and ``after`` are ratios of the longest over the shortest time that is thinkable.
    """

    work: Literal["train", "load"]
    evidence: Evidence
    ranks: int
    node_hours: float
    before: float
    after: float


def next_run(advised: Candidate, sizes: Sequence[int], images: int) -> NextRun | None:
    """Return the run that would narrow the advised candidate's time most; None where none would.

    Parameters
    ----------
    advised
        The candidate.
    sizes
        Numbers of ranks on which the extra run may be; more than advised are not tried.
    images
        Of an epoch.
    """
    evidence = advised.evidence
    ranks = sorted({one for one in sizes if one <= advised.ranks} | {advised.ranks})
    trained, loaded = evidence.epoch_s(images, ranks), evidence.load_s(ranks)
    decided = np.log(trained[:, -1])
    before = _width(decided)
    per_node = advised.ranks / advised.nodes
    found = []
    for place, count in enumerate(ranks):
        steps = images / (count * evidence.training.local_batch_size)
        nodes = -(-count // per_node)
        runs: dict[Literal["train", "load"], tuple[Values, float]] = {
            "train": (trained[:, place], 1.0),
            "load": (loaded[:, place], steps),  # its seconds are those of a step
        }
        for work, (measured, times) in runs.items():
            if (measured > 0).all():
                left = expected_width(decided, np.log(measured), evidence.noise)
                cost = float(nodes * times * measured[0] / SECONDS)
                widths = float(np.exp(before)), float(np.exp(left))
                found.append(NextRun(work, evidence, count, cost, *widths))
    most = max((one.before / one.after for one in found), default=1.0)
    if np.log(most) < _LEAST:
        return None
    able = [one for one in found if np.log(one.before / one.after) >= _NEARLY * np.log(most)]
    return min(able, key=lambda one: (one.node_hours, one.ranks))


def expected_width(decided: Values, measured: Values, noise: float) -> float:
    """Return the width of `decided` that is left on average after a measurement, see above.

    Parameters
    ----------
    decided, measured
        Logarithms of what each set predicts, shape (sets,).
    noise
        Relative standard deviation of the measurement.
    """
    near = np.abs(measured[:, None] - measured[None, :]) <= TWO_SIDED * noise
    high = np.where(near, decided[None, :], -np.inf).max(axis=1)
    low = np.where(near, decided[None, :], np.inf).min(axis=1)
    return float((high - low).mean())


def _width(values: Values) -> float:
    return float(values.max() - values.min())
