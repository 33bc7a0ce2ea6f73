"""The ratio of two arms' throughputs: from windows that took turns, else from whole runs."""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from ddl_core.analysis import estimates
from ddl_core.analysis.estimates import Estimate, Values

WALL, CPU = "throughput_samples_per_s", "throughput_samples_per_cpu_s"

Block = tuple[str, str]
Windows = dict[tuple[Block, int], float]
"""Throughputs by block (study and name) and round."""

WHOLE = -1
"""In place of a round: a whole run, one of a block that shared the nodes of a job."""


class Turns:
    """Throughputs of windows that took turns, by run; of runs that shared a job, one value each.

    Runs of a job are minutes apart: their windows are no pairs, but the runs are, on the same
    nodes.

    Parameters
    ----------
    windows
        A table of windows, or None for none at all.
    column
        `WALL` (images per second) or `CPU` (images per CPU second).
    """

    def __init__(self, windows: pd.DataFrame | None, column: str = WALL) -> None:
        self._runs: dict[tuple[str, str], Windows] = {}
        self._references: dict[Block, str] = {}
        if windows is None:
            return
        taken = windows[windows["block"].notna() & (windows[column] > 0)]
        taken = taken.assign(round=taken["round"].fillna(WHOLE), log=np.log(taken[column]))
        place = ["study", "run_id", "block", "reference", "round"]
        means = taken.groupby(place, dropna=False)["log"].mean()
        for (study, run_id, name, reference, number), value in means.items():
            if not pd.isna(reference):
                self._references[study, name] = reference
            own = self._runs.setdefault((study, run_id), {})
            own[(study, name), int(number)] = math.exp(value)

    def of(self, study: str, run_ids: Iterable[str]) -> Windows:
        """Return the windows of an arm: of all its runs."""
        return {
            place: value
            for run_id in run_ids
            for place, value in self._runs.get((study, run_id), {}).items()
        }

    def references(self, windows: Windows) -> Windows:
        """Return the windows of the references in the blocks that `windows` lie in."""
        blocks = {block for block, _ in windows if block in self._references}
        return {
            place: value
            for block in blocks
            for place, value in self.of(block[0], [self._references[block]]).items()
            if place[0] == block  # a run that was resumed has windows in several blocks
        }

    def ratio(self, one: Windows, other: Windows) -> Estimate | None:
        """Return the ratio of two arms from their windows; None where these do not tell.

        Windows of one block and round are a pair. Of arms that never were in one block, each is
        compared with the reference of its own: all blocks of a study have the same reference arm.
        """
        direct = paired(one, other)
        if direct.n > 1:
            return direct
        above, below = (paired(arm, self.references(arm)) for arm in (one, other))
        if min(above.n, below.n) < 2:
            return None
        return estimates.product(above, estimates.scaled(below, power=-1))


def paired(one: Windows, other: Windows) -> Estimate:
    """Return the ratio of windows that share block and round."""
    places = sorted(one.keys() & other.keys())
    return estimates.paired_ratio([one[p] for p in places], [other[p] for p in places])


def middle(windows: Windows, runs: Values) -> Estimate:
    """Return an arm's throughput over its windows where it took turns, else over its runs."""
    return estimates.middle(list(windows.values()) if len(windows) > 1 else runs)
