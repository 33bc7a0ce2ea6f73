"""Accuracy of the configurations of a study of several libraries, best first."""

from typing import Any

import pandas as pd

from ddl_tools.analysis.configurations import ended_runs
from ddl_tools.analysis.figures.columns import ORIGIN, typed
from ddl_tools.analysis.figures.study_rows import (
    REACHED,
    WHO_ROWS,
    Groups,
    studies,
    value_range,
)

ACCURACY = typed(WHO_ROWS, "dataset", REACHED, "repeats", ORIGIN)


def accuracy_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of each configuration that evaluated, of studies of several libraries.

    value is the mean of the last top-1 accuracies of the n runs, 0 to 1, low and high their range.
    """
    made = ended_runs(runs)
    made = made[made["top1"].notna() | made["lost"]]
    made = made.assign(value=made["top1"].mask(made["lost"]))
    several = made["framework"].where(made["value"].notna()).groupby(made["study"])

    def summary(groups: Groups, _: pd.DataFrame) -> list[dict[str, Any]]:
        return [value_range(group["value"]) | {"value": group["value"].mean()} for group in groups]

    return studies(made[several.transform("nunique") > 1], runs, "", summary, ACCURACY)
