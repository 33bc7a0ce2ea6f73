"""Expected resolution of a study, from how much earlier records varied."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import KEYS, made_runs
from ddl_tools.analysis.estimates import MARGIN
from ddl_tools.analysis.tables import runs_table, windows_table
from ddl_tools.analysis.turns import Turns, over_blocks, relative
from ddl_tools.records.paths import Tree, committed
from ddl_tools.records.provenance import host
from ddl_tools.study import Study

ENOUGH = 10  # degrees of freedom: fewer tell a spread no better than other machines' records do
USELESS = 0.5  # an interval wider than this on one side tells nothing about two configurations


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the log ratio of two configurations, and where it comes from."""

    log_sd: float
    source: str


def spread(study: Study, tree: Tree) -> Spread | None:
    """Return how much the ratio of two configurations varies between starts, or repeats.

    From the records of this machine in `tree`; where these are too few, from the published ones.
    None if these are too few as well.
    """
    machine = host()
    for place, name in ((tree, "this machine's records"), (committed(), "the published records")):
        runs = runs_table(place.runs)
        if place is tree:
            own = (runs["machine"] == machine["cpu"]) & (runs["cpu_cores"] == machine["cpu_cores"])
            runs = runs[own]
        if study.interleave is None:
            squares, freedom = _of_repeats(runs)
        else:
            squares, freedom = _of_starts(runs, windows_table(place.runs))
        if freedom >= ENOUGH:
            return Spread(math.sqrt(squares / freedom), f"{freedom} degrees of freedom of {name}")
    return None


def _of_starts(runs: pd.DataFrame, windows: pd.DataFrame) -> tuple[float, int]:
    """Return the squared deviations of log ratios to the baseline between starts, and their df."""
    turns = Turns(windows)
    squares, freedom = 0.0, 0
    for _, part in made_runs(runs, second_starts=True).groupby([*KEYS, "second_start"]):
        own = turns.of(part["study"].iloc[0], part.loc[~part["lost"], "run_id"])
        ratio = over_blocks(relative(own, turns.references(own)))
        if ratio.n > 1 and ratio.log_se > 0:  # the baseline against itself varies by nothing
            squares += ratio.log_se**2 * ratio.n * (ratio.n - 1)
            freedom += ratio.n - 1
    return squares, freedom


def _of_repeats(runs: pd.DataFrame) -> tuple[float, int]:
    """Return the same for runs minutes apart: twice what one run deviates from the mean."""
    squares, freedom = 0.0, 0
    for _, part in made_runs(runs).groupby(KEYS):
        logs = np.log(part["value"].dropna().to_numpy(dtype=float))
        if len(logs) > 1:
            squares += 2 * float(np.var(logs)) * len(logs)
            freedom += len(logs) - 1
    return squares, freedom


def resolves(study: Study, tree: Tree) -> str:
    """Return which difference of two configurations the study will resolve, and what 5 % needs."""
    what = "repeat" if study.interleave is None else "start"
    count = f"{study.repeats} {what}{'s' if study.repeats > 1 else ''}"
    found = spread(study, tree)
    if found is None:
        return f"resolution of {count}: not known, there are no records to tell"
    half = estimates.resolution(found.log_sd, study.repeats)
    needed = estimates.pairs_needed(found.log_sd, MARGIN)
    parts = [
        f"{count} resolve a difference of {half:.1%}"
        if half < USELESS
        else f"{count} cannot give a usable interval"
    ]
    parts += [f"{needed} would resolve {MARGIN:.0%} (`repeats`)"] if half > MARGIN else []
    return (
        f"resolution: {'; '.join(parts)} (95 %; a ratio varies by {found.log_sd:.1%} from {what} "
        f"to {what}: {found.source})"
    )
