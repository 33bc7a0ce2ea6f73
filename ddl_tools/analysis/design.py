"""Expected resolution of a study, from how much earlier records varied."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import ended_runs, starts
from ddl_tools.analysis.estimates import MARGIN
from ddl_tools.analysis.interleaving import Interleaved, block_means, relative
from ddl_tools.analysis.tables import runs_table, windows_table
from ddl_tools.names import plural
from ddl_tools.records.paths import Tree, committed
from ddl_tools.records.provenance import host
from ddl_tools.study import Study

ENOUGH = 10  # degrees of freedom: fewer know a spread no better than other machines' records do
USELESS = 0.5  # an interval wider than this on one side compares nothing


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the log ratio of two configurations, and where it comes from."""

    log_sd: float
    source: str


def spread(study: Study, tree: Tree) -> Spread | None:
    """Return how much the ratio of two configurations varies between starts, or repeats.

    From the records of this machine in `tree`; where these are too few, from the published ones,
    always of the study's own kind of device. None if these are too few as well.
    """
    machine, devices = host(), {spec.device for spec in study.expand()}
    for records, name in ((tree, "this machine's records"), (committed(), "the published records")):
        runs = runs_table(records)
        if records is tree:
            own = (runs["machine"] == machine["cpu"]) & (runs["cpu_cores"] == machine["cpu_cores"])
            runs = runs[own]
        if "auto" not in devices:
            runs = runs[runs["device_used"].isin(devices)]
        if study.interleave is None:
            logs = list(_of_repeats(runs))
        else:
            logs = list(_of_starts(runs, windows_table(records, [*runs["study"].unique()])))
        freedom = sum(len(values) - 1 for values in logs if len(values))
        if freedom >= ENOUGH:
            squares = sum(float(np.var(values)) * len(values) for values in logs if len(values))
            source = f"{freedom} degrees of freedom of {name}"
            return Spread(math.sqrt(squares / freedom), source)
    return None


def _of_starts(runs: pd.DataFrame, windows: pd.DataFrame) -> Iterator[np.ndarray]:
    """Return the log ratios to the baseline of the starts of each configuration."""
    interleaved = Interleaved(windows)
    for part in starts(ended_runs(runs, second_starts=True)):
        own = interleaved.of(part["study"].iloc[0], part.loc[~part["lost"], "run_id"])
        baseline = interleaved.references(own)
        if own != baseline:  # the baseline against itself varies by nothing
            yield np.log(block_means(relative(own, baseline)))


def _of_repeats(runs: pd.DataFrame) -> Iterator[np.ndarray]:
    """Return the same for runs minutes apart: a ratio has the variances of both of its runs."""
    for part in starts(ended_runs(runs)):
        yield math.sqrt(2) * np.log(part["value"].dropna().to_numpy(dtype=float))


def resolves(study: Study, tree: Tree) -> str:
    """Return which difference of two throughputs the study will resolve, and what 5 % needs."""
    what = "repeat" if study.interleave is None else "start"
    count = plural(study.repeats, what)
    found = spread(study, tree)
    if found is None:
        return f"throughput: resolution of {count} not known, there are too few records"
    half = estimates.resolution(found.log_sd, study.repeats)
    needed = estimates.pairs_needed(found.log_sd, MARGIN)
    parts = [
        f"{count} resolve a difference of {half:.1%}"
        if half < USELESS
        else f"{count} cannot give a usable interval"
    ]
    parts += [f"{needed} would resolve {MARGIN:.0%} (`repeats`)"] if half > MARGIN else []
    return (
        f"throughput: {'; '.join(parts)} (95 %; a ratio varies by {found.log_sd:.1%} from {what} "
        f"to {what}: {found.source})"
    )
