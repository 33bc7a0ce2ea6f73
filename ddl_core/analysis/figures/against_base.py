"""What the arms of a study have reached, and their ratios to one of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ddl_core.analysis import estimates, turns
from ddl_core.analysis.estimates import Estimate
from ddl_core.analysis.turns import Turns, Windows


class Arm(NamedTuple):
    """Runs that agree in every field, and what they reached."""

    lost: int
    commit: str
    runs: np.ndarray
    windows: Windows
    is_reference: bool


def arm(runs: pd.DataFrame, taken: Turns, references: set[str]) -> Arm:
    """Return what the runs of an arm reached; its reference has a run of those named."""
    known = runs[runs["value"].notna()]
    return Arm(
        int(runs["lost"].sum()),
        ";".join(sorted(set(known["commit"]))),
        known["value"].to_numpy(dtype=float),
        taken.of(runs["study"].iloc[0], known["run_id"]),
        bool(set(runs["run_id"]) & references),
    )


def reached(arm: Arm) -> dict[str, Any]:
    """Return the columns of an arm: how often it was measured, and its throughput."""
    mean = turns.middle(arm.windows, arm.runs)
    return {
        "n": len(arm.runs),
        "windows": sum(number != turns.WHOLE for _, number in arm.windows),
        "failed": arm.lost,
        "value": mean.ratio,
        "low": mean.low,
        "high": mean.high,
        "commit": arm.commit,
    }


def ratios(arms: Sequence[Arm], base: int, taken: Turns) -> dict[str, list[Any]]:
    """Return the columns of ratios to the base, which is 1 itself and without an interval."""
    others = [place for place in range(len(arms)) if place != base]
    found = {place: _ratio(arms[place], arms[base], taken) for place in others}
    known = [place for place in others if not np.isnan(found[place].low)]
    words = {place: estimates.decision(found[place]) for place in known}
    columns: dict[str, list[Any]] = {
        name: [
            getattr(found[place], part) if place in found else np.nan for place in range(len(arms))
        ]
        for name, part in (("ratio", "ratio"), ("ratio_low", "low"), ("ratio_high", "high"))
    }
    columns["ratio"][base] = 1.0 if len(arms[base].runs) else np.nan
    return columns | {"decision": [words.get(place) for place in range(len(arms))]}


def _ratio(arm: Arm, base: Arm, taken: Turns) -> Estimate:
    paired = taken.ratio(arm.windows, base.windows)
    return paired or estimates.unpaired_ratio(arm.runs, base.runs)
