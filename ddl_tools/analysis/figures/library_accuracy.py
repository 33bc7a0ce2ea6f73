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
from ddl_tools.analysis.plot import style
from ddl_tools.analysis.question import Question, Tables, in_percent, question

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


@question("accuracy_by_library")
class AccuracyByLibrary(Question):
    """Accuracy of several libraries: a table and sentences, no figure."""

    asks = "Do all libraries reach the same accuracy?"
    notebook = "21_related_papers"
    needs = "several libraries that evaluated"
    columns = "label value n"
    value = "top-1 accuracy (%), [range of runs]"
    text = """
{% for ranks, values in sizes.items() %}
- Top-1 accuracy of the libraries on {{ dataset }} with {{ ranks | plural("rank") }}:
{{ (100 * values) | span("{:.1f}") }} %.
{% else %}
- No two libraries were evaluated here.
{% endfor %}
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        return accuracy_points(tables.runs)

    def enough(self, points: pd.DataFrame) -> bool:
        return False

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        return in_percent(points[points["n"] > 0]).sort_values("value", ascending=False)

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        known = points[points["n"] > 0]
        names = ", ".join(map(style.dataset_name, known["dataset"].unique()))
        return {"dataset": names, "sizes": dict(iter(known.groupby("world_size")["value"]))}
