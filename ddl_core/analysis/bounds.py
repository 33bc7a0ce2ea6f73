"""How close each training comes to what its loader alone and training alone allow.

T(real) >= max(T(loader), T(training)), so no throughput exceeds the smaller of the two. Loader
alone is a run with ``work = "load"``, training alone one on synthetic data. Neither is ever
estimated.
"""

from typing import Any

import numpy as np
import pandas as pd

from ddl_core.analysis import metrics
from ddl_core.analysis.arms import KEYS, made_runs
from ddl_core.analysis.settings import LOADING, TRAINING
from ddl_core.analysis.style import MODEL_NAMES

# Medians that differ by less are called alike: the paper's spread of repeats, as in `claims`.
ALIKE = 0.05
_MOST_SPAN = 8  # from the fewest to the most workers on one axis

BOUNDS = {
    "panel": "string",
    "study": "string",
    "strategy": "string",
    "loader": "string",
    "data_format": "string",
    "model": "string",
    "local_batch_size": "Int64",
    "loader_workers": "Int64",
    "world_size": "Int64",
    "n": "Int64",
    "failed": "Int64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "loading_n": "Int64",
    "loading": "float64",
    "loading_low": "float64",
    "loading_high": "float64",
    "training_n": "Int64",
    "training": "float64",
    "training_low": "float64",
    "training_high": "float64",
    "bound": "float64",
    "in_turns": "float64",
    "ratio": "float64",
    "ratio_low": "float64",
    "ratio_high": "float64",
    "limit": "string",
    "hardware": "string",
    "on_cpu": "boolean",
    "commit": "string",
}
_HALVES = ("loading", "training")
_MISSING = {"loading": "loader alone", "training": "synthetic"}


def loader_bound(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per measured arm that reads data, with its bound: `BOUNDS`.

    loading and training are the medians (images/s) of the loader alone and of training on
    synthetic data, from runs that agree in everything these depend on; bound is the smaller one,
    in_turns what is left if both take turns on the same cores, 1 / (1/loading + 1/training).
    ratio is value / bound with the interval of that ratio. limit says what limits: the smaller
    half, ``loader`` or ``training`` (``either`` if they are alike), where the interval comes within
    5 % of the bound; else both of them, or neither alone. Or it says what was not measured: then
    bound, in_turns and ratio are missing.

    A panel is a setting and model, and where numbers of workers lie far apart, one of these.
    """
    both = pd.concat([made_runs(runs), made_runs(runs, "load")], ignore_index=True)
    for half, agree in (("loading", LOADING), ("training", TRAINING)):
        both[half] = both.groupby(agree, dropna=False, sort=False).ngroup()
    trained, free = both["work"] == "train", both["loader"] == "synthetic"
    references = {
        "loading": dict(iter(both[~trained].groupby("loading"))),
        "training": dict(iter(both[trained & free].groupby("training"))),
    }
    rows = [
        _row(arm, {half: references[half].get(arm[half].iloc[0]) for half in _HALVES})
        for _, arm in both[trained & ~free].groupby(KEYS)
    ]
    return _in_panels(pd.DataFrame(rows, columns=list(BOUNDS)).astype(BOUNDS))


def _in_panels(table: pd.DataFrame) -> pd.DataFrame:
    """Divide panels that no axis could hold; put first what has a bound: not all may be drawn."""
    workers = table["world_size"]
    sizes = workers.groupby(table["panel"])
    wide = sizes.transform("max") > _MOST_SPAN * sizes.transform("min")
    known = table["bound"].notna().groupby(table["panel"]).transform("any")
    order = pd.DataFrame({"known": ~known, "panel": table["panel"], "size": workers.where(wide, 0)})
    divided = table["panel"] + ", " + workers.astype("string") + " workers"
    table = table.assign(panel=table["panel"].mask(wide, divided))
    order = order.sort_values(["known", "panel", "size"], kind="stable")
    return table.loc[order.index].reset_index(drop=True)


def _row(arm: pd.DataFrame, references: dict[str, pd.DataFrame | None]) -> dict[str, Any]:
    first = arm.iloc[0]
    tables = [arm, *(table for table in references.values() if table is not None)]
    row = {name: first[name] for name in BOUNDS if name in arm and name not in _HALVES} | {
        "panel": f"{first['setting']}, {MODEL_NAMES[first['model']]}",
        "failed": int(arm["lost"].sum()),
        "commit": ";".join(sorted({name for table in tables for name in _commits(table)})),
        **_summary(_values(arm), ""),
    }
    halves = {half: _values(table) for half, table in references.items()}
    for half, values in halves.items():
        row |= _summary(values, half)
    missing = [half for half in _HALVES if not row[f"{half}_n"]]
    if missing:
        return row | {"limit": _not_measured(missing, references)}
    lower = min(_HALVES, key=lambda half: row[half])
    row |= {
        "bound": row[lower],
        "in_turns": 1 / (1 / row["loading"] + 1 / row["training"]),
    }
    if not row["n"]:
        return row | {"limit": "no value of its own"}
    low, high = metrics.bootstrap_ratio_interval(_values(arm), halves[lower])
    row |= {"ratio": row["value"] / row["bound"], "ratio_low": low, "ratio_high": high}
    return row | {"limit": _limit(row)}


def _values(table: pd.DataFrame | None) -> np.ndarray:
    return np.empty(0) if table is None else table["value"].dropna().to_numpy(dtype=float)


def _commits(table: pd.DataFrame) -> set[str]:
    return set(table.loc[~table["lost"], "commit"])


def _summary(values: np.ndarray, half: str) -> dict[str, Any]:
    """Return median and interval, for the arm itself (``""``) or for one half of it."""
    low, high = metrics.bootstrap_interval(values)
    stem = f"{half}_" if half else ""
    return {
        f"{stem}n": len(values),
        half or "value": float(np.median(values)) if len(values) else np.nan,
        f"{stem}low": low,
        f"{stem}high": high,
    }


def _not_measured(missing: list[str], references: dict[str, pd.DataFrame | None]) -> str:
    reasons = {
        "not measured": [_MISSING[half] for half in missing if references[half] is None],
        "failed": [_MISSING[half] for half in missing if references[half] is not None],
    }
    return "; ".join(f"{why}: {', '.join(names)}" for why, names in reasons.items() if names)


def _limit(row: dict[str, Any]) -> str:
    """Return what limits an arm whose bound is known, as far as the intervals can tell."""
    ends = [row["ratio_low"], row["ratio_high"]]
    low, high = [row["ratio"]] * 2 if np.isnan(ends).any() else ends
    if low > 1 + ALIKE:
        return "unclear (above it)"
    if high < 1 - ALIKE:
        return "both (same cores)" if row["on_cpu"] else "neither alone"
    if abs(row["loading"] - row["training"]) <= ALIKE * row["bound"]:
        return "either"
    return "loader" if row["loading"] < row["training"] else "training"
