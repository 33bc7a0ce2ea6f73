"""Throughputs that others published, beside ours where the GPUs are of one kind."""

import re

import pandas as pd

from ddl_core.analysis.paper import Paper
from ddl_core.analysis.plot import style

READ = ["source_read", "logs_read", "quoted"]  # data/published/README.md
COLUMNS = ["source", "place", "framework", "model", "hardware", "world_size", "precision", "loader",
           "per_gpu", "ours", "ours_per_gpu", "ratio"]  # fmt: skip


def beside(arms: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return a row per published throughput and arm of ours with the same network on such a GPU.

    Columns: `COLUMNS`; per_gpu is images per second and GPU. A published number without one of ours
    keeps its row, with nothing beside it. Precision, loader and batch differ from row to row: it is
    a check of plausibility, and no ranking.
    """
    table = paper.performance
    table = table[(table["quantity"] == "throughput") & table["evidence"].isin(READ)]
    table = table.assign(kind=table["hardware"].map(_kind), per_gpu=_each(table, "value"))
    ours = arms[~arms["on_cpu"].astype(bool) & arms["value"].notna()]
    ours = style.with_framework(ours)
    ours = pd.DataFrame(
        {
            "kind": ours["hardware"].map(_kind),
            "model": ours["model"],
            "ours": ours["setting"] + ", " + ours["framework"] + ", " + ours["loader"],
            "ours_per_gpu": _each(ours, "value"),
        }
    ).dropna(subset="kind")
    both = table.merge(ours, on=["kind", "model"], how="left")
    return both.assign(ratio=both["ours_per_gpu"] / both["per_gpu"])[COLUMNS]


def _each(table: pd.DataFrame, column: str) -> pd.Series:
    return table[column].astype(float) / table["world_size"].astype(float)


def _kind(hardware: object) -> str | None:
    """Return the kind of GPU that a machine's description names, e.g. "A100"."""
    found = re.search(r"\b([A-Z]{1,2}\d{2,3})\b", "" if pd.isna(hardware) else str(hardware))
    return found[1] if found else None
