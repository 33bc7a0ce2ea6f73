"""Expected resolution of a study, from how much earlier records varied."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

import numpy as np
import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import ended_runs, starts
from ddl_tools.analysis.estimates import LEAST, MARGIN
from ddl_tools.analysis.interleaving import Interleaved, block_means, relative
from ddl_tools.analysis.tables import runs_table, windows_table
from ddl_tools.names import plural
from ddl_tools.records.paths import Tree, committed
from ddl_tools.records.provenance import host
from ddl_tools.study import Study

ENOUGH = 10  # degrees of freedom of a study: fewer know no spread
USELESS = 0.5  # an interval wider than this on one side compares nothing
# Of ten later ratios nine vary by no more than this times the usual spread, that of an earlier
# measurement of the same study or of other studies. Both are of the published records, in which
# neither the length of epochs nor that of starts tells which studies vary alike.
SAME, OTHER = 1.6, 2.5


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the log ratio of two configurations from start to start.

    ``usual`` is the median of the configurations that ``source`` names, ``most`` that of 9 of 10.
    """

    usual: float
    most: float
    source: str


def spread(study: Study, tree: Tree) -> Spread | None:
    """Return how much the ratio of two configurations of a study is going to vary between starts.

    From an earlier measurement of the study, else from `LEAST` other interleaved studies or more,
    of the same kind of device: the records of this machine in `tree`, else the published ones. None
    without these, or if the study is not interleaved: how whole runs vary changes from day to day.
    """
    if study.interleave is None:
        return None
    machine, devices = host(), {spec.device for spec in study.expand()}
    for records, where in ((tree, "on this machine"), (committed(), "as published")):
        runs = runs_table(records)
        if records is tree:
            own = (runs["machine"] == machine["cpu"]) & (runs["cpu_cores"] == machine["cpu_cores"])
            runs = runs[own]
        if "auto" not in devices:
            runs = runs[runs["device_used"].isin(devices)]
        found = _usual_spreads(runs, windows_table(records, [*runs["study"].unique()]))
        if usual := found.get(study.name):
            return Spread(usual, SAME * usual, f"study {study.name} {where}")
        if len(found) >= LEAST:
            usual = median(found.values())
            names = ", ".join(sorted(found))
            return Spread(usual, OTHER * usual, f"{len(found)} studies {where} ({names})")
    return None


def _usual_spreads(runs: pd.DataFrame, windows: pd.DataFrame) -> dict[str, float]:
    """Return by study the median over configurations of the spread of their ratios."""
    interleaved = Interleaved(windows)
    spreads: defaultdict[str, list[float]] = defaultdict(list)
    freedom: defaultdict[str, int] = defaultdict(int)
    for part in starts(ended_runs(runs, second_starts=True)):
        study = str(part["study"].iloc[0])
        own = interleaved.of(study, part.loc[~part["lost"], "run_id"])
        baseline = interleaved.references(own)
        logs = np.log(block_means(relative(own, baseline)))
        if own != baseline and len(logs) >= LEAST:  # against itself, a baseline varies by nothing
            spreads[study].append(float(np.std(logs, ddof=1)))
            freedom[study] += len(logs) - 1
    return {study: median(own) for study, own in spreads.items() if freedom[study] >= ENOUGH}


def resolves(study: Study, tree: Tree) -> str:
    """Return which difference of two throughputs the study will resolve, and what 5 % needs."""
    count = plural(study.repeats, "start")
    if study.interleave is None:
        repeats = plural(study.repeats, "repeat")
        return f"throughput: resolution of {repeats} not known, the study is not interleaved"
    found = spread(study, tree)
    if found is None:
        return (
            f"throughput: resolution of {count} not known, fewer than {LEAST} interleaved studies "
            "were measured on such devices"
        )
    half = estimates.resolution(found.most, study.repeats)
    needed = estimates.pairs_needed(found.most, MARGIN)
    parts = [
        f"{count} resolve a difference of {half:.1%} in 9 of 10 ratios"
        if half < USELESS
        else f"{count} cannot give a usable interval"
    ]
    parts += [f"{needed} would resolve {MARGIN:.0%} (`repeats`)"] if half > MARGIN else []
    return (
        f"throughput: {'; '.join(parts)} (95 %; from start to start a ratio usually varies by "
        f"{found.usual:.1%}, in 9 of 10 by {found.most:.1%} at most: {found.source})"
    )
