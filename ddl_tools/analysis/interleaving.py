"""Ratios of two configurations' throughputs, from interleaved windows or from whole runs.

Windows of one block are of one start. What another start would change is seen between blocks
alone, so an interval is over the means of blocks; with one block there is none.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.estimate import Estimate
from ddl_tools.records.rounds import DISTURBED

WALL, CPU = "throughput_samples_per_s", "throughput_samples_per_cpu_s"

Block = tuple[str, str]
Windows = dict[tuple[Block, int], float]
"""Throughputs by block (study and name) and round."""

WHOLE = -1
"""In place of a round: a whole run, one of a block that shared the nodes of a job."""


class Sample(NamedTuple):
    """Throughputs of runs that may be pooled, and those of their interleaved windows.

    `commits` are those of the runs, by position.
    """

    values: np.ndarray
    windows: Windows
    commits: Sequence[str] = ()

    @property
    def mean(self) -> Estimate:
        """The throughput over blocks where it was interleaved, else over runs."""
        return over_blocks(self.windows) if self.windows else estimates.middle(self.values)

    def of(self, commit: str) -> np.ndarray:
        """Return the throughputs of the runs of one commit."""
        return self.values[np.array(self.commits) == commit]


class Interleaved:
    """Throughputs of interleaved windows by run; of runs that shared a job, one value each.

    Runs of a job are minutes apart: their windows are no pairs, but the runs are, on the same
    nodes. `column` of the table of windows (or None) is `WALL` or `CPU`.
    """

    def __init__(self, windows: pd.DataFrame | None, column: str = WALL) -> None:
        self._runs: dict[tuple[str, str], Windows] = {}
        self._references: dict[Block, str] = {}
        if windows is None:
            return
        counts = windows["block"].notna() & windows["left_out"].isna()
        known = windows[counts & (windows[column] > 0)]
        known = known.assign(round=known["round"].fillna(WHOLE), log=np.log(known[column]))
        place = ["study", "run_id", "block", "reference", "round"]
        means = known.groupby(place, dropna=False)["log"].mean()
        for (study, run_id, name, reference, number), value in means.items():
            if not pd.isna(reference):
                self._references[study, name] = reference
            own = self._runs.setdefault((study, run_id), {})
            own[(study, name), int(number)] = math.exp(value)

    def of(self, study: str, run_ids: Iterable[str]) -> Windows:
        """Return the windows of some runs."""
        return {
            place: value
            for run_id in run_ids
            for place, value in self._runs.get((study, run_id), {}).items()
        }

    def sample(self, runs: pd.DataFrame) -> Sample:
        """Return those of some runs of one study that have a value."""
        known = runs[runs["value"].notna()]
        windows = self.of(next(iter(known["study"]), ""), known["run_id"])
        return Sample(known["value"].to_numpy(dtype=float), windows, list(known["commit"]))

    def references(self, windows: Windows) -> Windows:
        """Return the windows of the baselines in the blocks that `windows` lie in."""
        blocks = {block for block, _ in windows if block in self._references}
        return {
            place: value
            for block in blocks
            for place, value in self.of(block[0], [self._references[block]]).items()
            if place[0] == block  # a run that was resumed has windows in several blocks
        }

    def ratio(self, one: Windows, other: Windows) -> Estimate | None:
        """Return the ratio of two configurations from windows; None where these share nothing.

        Windows of one block and round are a pair. Configurations that never were in one block are
        compared by the baseline, which is in all blocks of a study.
        """
        if pairs := paired(one, other):
            return over_blocks(pairs)
        above, below = (over_blocks(relative(side, self.references(side))) for side in (one, other))
        if min(above.n, below.n) < 1:
            return None
        return estimates.product(above, estimates.scaled(below, power=-1))

    def compare(self, one: Sample, other: Sample) -> Estimate:
        """Return the ratio of two samples, from windows where these share some, else from runs."""
        paired = self.ratio(one.windows, other.windows)
        return paired or of_runs(one, other)

    def starts(self, one: Sample, other: Sample) -> list[float]:
        """Return the ratio of each start of `one` that contributes to `compare`.

        Where starts are no pairs, it is to the mean of `other`: of all starts, or of a commit.
        """
        if pairs := paired(one.windows, other.windows):
            return block_means(pairs)
        sides = (one.windows, other.windows)
        above, below = (relative(side, self.references(side)) for side in sides)
        if above and below:
            to = over_blocks(below).value
            return [value / to for value in block_means(above)]
        commits = common_commits(one, other)
        parts = [(one.of(at), other.of(at)) for at in commits] or [(one.values, other.values)]
        return [
            value / estimates.middle(base).value
            for values, base in parts
            if len(base)
            for value in values
        ]


def common_commits(one: Sample, other: Sample) -> list[str]:
    """Return the commits of which both have runs."""
    return sorted({*one.commits} & {*other.commits})


def of_runs(one: Sample, other: Sample) -> Estimate:
    """Return the ratio of two samples by their whole runs, each commit by itself.

    A record does not name its session, but another commit is another session. Several commits are
    pairs, as blocks are. Samples without a common commit are compared as they are.
    """
    commits = common_commits(one, other)
    if len(commits) > 1:
        means = ([estimates.middle(side.of(at)).value for at in commits] for side in (one, other))
        return estimates.paired_ratio(*means)
    sides = [side.of(commits[0]) if commits else side.values for side in (one, other)]
    return estimates.unpaired_ratio(*sides)


def lost_starts(windows: pd.DataFrame) -> dict[str, list[str]]:
    """Return by study the blocks of which no round counts, as some were disturbed.

    None of a study without any round that counts: its whole runs are compared.
    """
    rounds = windows[windows["round"].notna()]
    found: dict[str, list[str]] = {}
    for study, own in rounds.groupby("study"):
        blocks = own.groupby("block")["left_out"]
        gone = blocks.agg(lambda why: why.notna().all() and why.eq(DISTURBED).any())
        if gone.any() and own["left_out"].isna().any():
            found[str(study)] = sorted(gone.index[gone])
    return found


def counted(windows: Iterable[tuple[Block, int]]) -> int:
    """Return the number of windows; a whole run is none."""
    return sum(number != WHOLE for _, number in windows)


def block_means(values: Windows) -> list[float]:
    """Return the geometric mean of each block."""
    logs: defaultdict[Block, list[float]] = defaultdict(list)
    for (block, _), value in sorted(values.items()):
        logs[block].append(math.log(value))
    return [math.exp(np.mean(own)) for own in logs.values()]


def over_blocks(values: Windows) -> Estimate:
    """Return the geometric mean of the blocks' geometric means; n is the number of blocks."""
    return estimates.middle(block_means(values))


def relative(one: Windows, other: Windows) -> Windows:
    """Return the ratios of windows that share block and round."""
    return {place: one[place] / other[place] for place in one.keys() & other.keys()}


def paired(one: Windows, other: Windows) -> Windows:
    """Return `relative`, or nothing where it is a single pair of whole runs."""
    pairs = relative(one, other)
    return pairs if len(pairs) > 1 or counted(pairs) else {}
