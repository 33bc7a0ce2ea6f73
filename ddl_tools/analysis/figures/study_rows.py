"""Rows of the configurations of each study, panel by panel, and the dots of their runs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ddl_tools.analysis.configurations import numbered, rows, specs, stack
from ddl_tools.analysis.figures.columns import WHO
from ddl_tools.analysis.plot import style
from ddl_tools.analysis.tables import whole
from ddl_tools.names import ITEMS, common, distinguish, label, plural, unsaid
from ddl_tools.records.identity import REPEATS, SIZE

WHO_ROWS = f"question panel {WHO} world_size second_start label"
REACHED = "n failed value low high"
# Where and with what a run was made.
_PLACE = ["model", "hardware", "device_used", "machine", "cpu_cores", "memory_gib", "software"]
_PLACE += ["method_version"]
_COMMON = ["strategy", "loader", "gpus_per_node", "model", "image_size", "local_batch_size"]
_COMMON += ["precision"]

BELOW = 1 / 3  # of a row, from a value to the dots of its runs

Groups = Sequence[pd.DataFrame]
Summary = Callable[[Groups, pd.DataFrame], list[dict[str, Any]]]
"""From the runs of each configuration and one row of each to more columns of these rows."""


def studies(
    made: pd.DataFrame,
    runs: pd.DataFrame,
    question: str,
    summary: Summary,
    columns: dict[str, str],
) -> pd.DataFrame:
    """Return the rows of the configurations of each study, panel by panel.

    A panel has one network: images and memory of different networks are not comparable.
    """
    tables = [pd.DataFrame(columns=list(columns))]
    for study, own in made.groupby("study"):
        numbers = numbered(own, ["configuration"])
        firsts = own[~numbers.duplicated()]
        fields = specs(firsts)
        labels = label(fields, REPEATS) if len(fields) > 1 else [common(fields, _COMMON[:3])]
        shared = common(fields, _COMMON)
        about = own.assign(
            label=numbers.map(dict(enumerate(labels))),
            common=shared,
            unsaid=unsaid(fields, {*REPEATS, *SIZE}),
            left_out=_left_out(whole(runs[runs["study"] == study]), own),
            question=question,
        )
        texts = label(rows(about.drop_duplicates(_PLACE), _PLACE))
        places = about.groupby(_PLACE, dropna=False, sort=False)
        for text, (_, place) in zip(texts, places, strict=True):
            groups = [group for _, group in place.groupby("configuration", sort=False)]
            firsts = pd.concat([group.head(1) for group in groups], ignore_index=True)
            facts = firsts["differs"].str.replace(", ", ITEMS)
            firsts["label"] = distinguish(firsts["label"], facts)
            found = zip(groups, summary(groups, firsts), strict=True)
            reached = pd.DataFrame([_reached(group) | more for group, more in found])
            table = firsts.assign(panel=": ".join(filter(None, [str(study), text or shared])))
            table[list(reached)] = reached
            tables.append(table.sort_values(["value", "label"], ascending=[False, True]))
    return stack(tables, columns)


def _left_out(runs: pd.DataFrame, made: pd.DataFrame) -> str:
    """Return how many `runs` of a study are not in `made`, and why."""
    rest = runs[~runs["run_id"].isin(made["run_id"])]
    loading, ended = rest["work"] != "train", rest["status"] == "completed"
    counts = {
        "that only load": int(loading.sum()),
        "without a warm epoch": int((~loading & ended).sum()),
        "not finished": int((~loading & ~ended).sum()),
    }
    return ", ".join(f"{plural(number, 'run')} {why}" for why, number in counts.items() if number)


def _reached(group: pd.DataFrame) -> dict[str, Any]:
    known = group[group["value"].notna()]
    return {
        "n": len(known),
        "failed": int(group["lost"].sum()),
        "repeats": listed(known["value"]),
        "commit": ";".join(sorted(set(known["commit"]))),
    }


def listed(values: Iterable[float]) -> str:
    """Return values as one cell."""
    return ";".join(f"{one:.6g}" for one in values)


def value_range(values: pd.Series) -> dict[str, Any]:
    """Return the ends of some values as columns."""
    return {"low": values.min(), "high": values.max()}


def draw_runs(
    ax: Axes, table: pd.DataFrame, looks: style.Looks, column: str = "repeats"
) -> list[float]:
    """Draw the runs as small dots where a configuration has several; return all values."""
    found: list[float] = []
    for row in table[table["n"] > 0].to_dict("records"):
        values = np.array(row[column].split(";"), dtype=float)
        found += values.tolist()
        if row["n"] > 1:
            ax.plot(
                values,
                np.full(len(values), row["row"] + BELOW),
                ".",
                markersize=3,
                color=looks[row["framework_strategy"]]["color"],
                alpha=0.6,
            )
    return found
