"""What a study will resolve: before it runs, from how much earlier records varied."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddl_core.analysis import estimates
from ddl_core.analysis.arms import KEYS, made_runs
from ddl_core.analysis.estimates import MARGIN
from ddl_core.analysis.tables import runs_table, windows_table
from ddl_core.analysis.turns import Turns
from ddl_core.records.paths import Tree, committed
from ddl_core.records.provenance import host
from ddl_core.spec.study import Study

ENOUGH = 20  # degrees of freedom: fewer tell a spread no better than other machines' records do


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the log ratio of two arms, and where it comes from."""

    log_sd: float
    source: str


def spread(study: Study, tree: Tree) -> Spread | None:
    """Return how much the ratio of two arms varies from pair to pair, or from repeat to repeat.

    From the records of this machine in `tree`; where these are too few, from the published ones.
    None if these are too few as well.
    """
    machine = host()
    for place, name in ((tree, "this machine's records"), (committed(), "the published records")):
        runs = runs_table(place.runs)
        if place is tree:
            runs = runs[(runs["machine"] == machine["cpu"])
                        & (runs["cpu_cores"] == machine["cpu_cores"])]  # fmt: skip
        squares, freedom = (
            _of_repeats(runs) if study.turns is None else _of_pairs(runs, windows_table(place.runs))
        )
        if freedom >= ENOUGH:
            return Spread(math.sqrt(squares / freedom), f"{freedom} degrees of freedom of {name}")
    return None


def _of_pairs(runs: pd.DataFrame, windows: pd.DataFrame) -> tuple[float, int]:
    """Return squared deviations of log ratios to the reference from their arm's mean, and df."""
    turns = Turns(windows.merge(runs[["study", "run_id"]]))
    squares, freedom = 0.0, 0
    for study, run_id in runs[["study", "run_id"]].itertuples(index=False):
        own = turns.of(study, [run_id])
        base = turns.references(own)
        logs = [math.log(own[place] / base[place]) for place in own.keys() & base.keys()]
        if len(logs) > 1 and any(logs):  # the reference against itself varies by nothing
            squares += float(np.var(logs)) * len(logs)
            freedom += len(logs) - 1
    return squares, freedom


def _of_repeats(runs: pd.DataFrame) -> tuple[float, int]:
    """Return the same for runs minutes apart: twice what one run deviates from its arm's mean."""
    squares, freedom = 0.0, 0
    for _, arm in made_runs(runs).groupby(KEYS):
        logs = np.log(arm["value"].dropna().to_numpy(dtype=float))
        if len(logs) > 1:
            squares += 2 * float(np.var(logs)) * len(logs)
            freedom += len(logs) - 1
    return squares, freedom


def resolves(study: Study, tree: Tree) -> str:
    """Return how well the study will know the ratio of two arms, and what 5 % needs, in a line."""
    if study.turns is None:
        pairs, what, field = study.repeats, "repeats", "repeats"
    else:
        epochs = min(run.epochs for run in study.expand())
        pairs, what, field = (epochs - 1) * study.repeats, "windows in turns", "epochs"
    found = spread(study, tree)
    if found is None:
        return f"resolution of {pairs} {what}: not known, there are no records to tell"
    half = estimates.resolution(found.log_sd, pairs)
    reach = f"to {half:.1%}" if math.isfinite(half) else "without an interval"
    needed = estimates.pairs_needed(found.log_sd, MARGIN)
    return (
        f"resolution: {pairs} {what} give the ratio of two arms {reach} (95 %; it varies by "
        f"{found.log_sd:.1%}: {found.source}); {MARGIN:.0%} needs {needed} (`{field}`)"
    )
