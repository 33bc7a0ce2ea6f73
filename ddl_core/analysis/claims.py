"""What our runs say about the paper's statements. Verdicts are computed, never typed in.

A verdict on speed needs the same arms at the same numbers of workers, on accelerators: cores of a
CPU can neither confirm nor refute what was said about GPUs. The same arms read the same format,
native folders and DALI TFRecord. Otherwise it is "cannot say", with the reason.

The paper trained ResNet50 on ImageNet with up to 65,536 images a batch. What it says of the
accuracy at a batch size is compared with the same place in our range: its small batches (to 4096,
before its first clear drop) with our smallest, its largest with our largest. So a verdict says
whether another task shows the same, and is no test of the paper's numbers.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from ddl_core.analysis import paper as published
from ddl_core.analysis.paper import BASE_WORLD_SIZE, Paper, covers
from ddl_core.analysis.plot import style

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "cannot say"
# "In general below 5 %" is the spread of repeats that the paper states (captions of Figs. 3 to 7).
SIMILAR = 0.05

COLUMNS = ["statement", "claim", "place", "ours", "verdict", "why"]
_NAMES: dict[str, Callable[[str], str]] = {
    "strategy": style.strategy_name,
    "loader": style.loader_name,
    "model": style.model_name,
}
Interval = tuple[float, float]

SAME, OPPOSITE, ALIKE = "the same here", "the opposite here", "no difference seen here"
NOT_RUN = "not run here"
SINGLE = "cannot say: a single run"
LAST_SMALL_WORLD = 64  # GPUs of 64 images: a batch of 4096
ACCURACY_COLUMNS = ["study", "statement", "claim", "place", "ours", "verdict"]


def speed_claims(arms: pd.DataFrame, paper: Paper, quantity: str) -> pd.DataFrame:
    """Return one row per stated comparison of `quantity`, judged by an arm table: `COLUMNS`.

    `quantity` is ``"throughput"`` or ``"parallel_efficiency"``. "Greater" is decided where the two
    intervals lie apart, "similar" where their ratio surely stays within 5 % or surely does not.
    """
    arms = _measured(arms, quantity)
    claims = paper.orderings[paper.orderings["quantity"] == quantity]
    rows = [_ordering(claim, arms) for claim in claims.to_dict("records")]
    return pd.DataFrame(rows, columns=COLUMNS)


def values(arms: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return one row per stated parallel efficiency, judged by an arm table: `COLUMNS`.

    Ours counts where it is relative to 4 workers as the paper's. A value is supported if our
    interval comes within 5 % of it, a bound if our interval lies on its allowed side.
    """
    arms = _measured(arms, "parallel_efficiency")
    arms = arms[arms["base_world_size"] == BASE_WORLD_SIZE]
    stated = published.efficiency_points(paper)
    stated = stated[stated["source"] == "stated"]
    return pd.DataFrame([_value(row, arms) for row in stated.to_dict("records")], columns=COLUMNS)


def _measured(arms: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Return the measured arms with the middle and the interval of `quantity`.

    Only those that read what the paper's loader of that name read.
    """
    arms = arms[arms["data_format"] == arms["loader"].map(published.FORMATS)]
    prefix = {"throughput": "", "parallel_efficiency": "efficiency_"}[quantity]
    arms = arms.assign(
        middle=arms["efficiency" if prefix else "value"],
        below=arms[f"{prefix}low"],
        above=arms[f"{prefix}high"],
    )
    return arms[arms["middle"].notna()]


def _ordering(claim: dict[str, Any], arms: pd.DataFrame) -> dict[str, Any]:
    column, left, right = claim["compared"], claim["left"], claim["right"]
    fixed = {
        name: claim[name]
        for name in ("strategy", "loader", "model")
        if name != column and not pd.isna(claim[name])
    }
    low, high = _workers(claim["world_size_min"], claim["world_size_max"])
    arms = _matching(arms, fixed, low, high)
    verdicts, seen = [], []
    for workers, one, other in _pairs(arms, column, left, right):
        verdicts.append(_compare(claim["relation"], one, other))
        seen.append(f"{workers} workers: {one['middle']:.3g} against {other['middle']:.3g}")
    names = _NAMES[column]
    words = {"greater": "more than", "similar": "like"}[claim["relation"]]
    context = [_NAMES[name](value) for name, value in fixed.items()]
    claimed = f"{names(left)} {words} {names(right)} ({', '.join([*context, _span(low, high)])})"
    return _row(claim, claimed, verdicts, seen)


def _value(stated: dict[str, Any], arms: pd.DataFrame) -> dict[str, Any]:
    fixed = {
        name: stated[name] for name in ("strategy", "loader", "model") if not pd.isna(stated[name])
    }
    low, high = int(stated["world_size_min"]), int(stated["world_size"])
    verdicts, seen = [], []
    for arm in _matching(arms, fixed, low, high).to_dict("records"):
        verdicts.append(_contains(stated["bound"], stated["value"], arm))
        seen.append(f"{arm['world_size']} workers: {arm['middle']:.2f}")
    context = [_NAMES[name](value) for name, value in fixed.items()]
    claimed = f"E {stated['printed']} ({', '.join([*context, _span(low, high)])})"
    return _row(stated, claimed, verdicts, seen)


def _workers(low: Any, high: Any) -> tuple[int, int]:
    """Return the numbers of workers that are surely meant: where one end is open, the other."""
    ends = [int(end) for end in (low, high) if not pd.isna(end)]
    return (min(ends), max(ends)) if ends else (0, 0)


def _span(low: int, high: int) -> str:
    return f"{low} GPUs" if low == high else f"{low} to {high} GPUs"


def _matching(arms: pd.DataFrame, fixed: dict[str, str], low: int, high: int) -> pd.DataFrame:
    for name, wanted in fixed.items():
        arms = arms[np.array([covers(wanted, value) for value in arms[name]], dtype=bool)]
    return arms[arms["world_size"].between(low, high)]


def _pairs(
    arms: pd.DataFrame, column: str, left: str, right: str
) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Return the arms of one setting and number of workers that differ in `column` alone."""
    others = [name for name in ("strategy", "loader", "model") if name != column]
    for key, group in arms.groupby(["world_size", "setting", "hardware", *others], sort=True):
        rows = group.to_dict("records")
        for one in (row for row in rows if covers(left, row[column])):
            for other in (row for row in rows if covers(right, row[column])):
                yield int(key[0]), one, other


def _compare(relation: str, one: dict[str, Any], other: dict[str, Any]) -> str:
    if one["on_cpu"] or pd.isna([one["below"], other["below"]]).any():
        return _why_not(one)
    low, high = one["below"] / other["above"], one["above"] / other["below"]
    if relation == "greater":
        return _decide(low > 1, high < 1)
    return _decide(
        low >= 1 - SIMILAR and high <= 1 + SIMILAR, low > 1 + SIMILAR or high < 1 - SIMILAR
    )


def _contains(bound: str, value: float, arm: dict[str, Any]) -> str:
    if arm["on_cpu"] or pd.isna(arm["below"]):
        return _why_not(arm)
    if bound == "value":
        near = arm["below"] <= value * (1 + SIMILAR) and arm["above"] >= value * (1 - SIMILAR)
        return _decide(near, not near)
    inside = arm["below"] <= value <= arm["above"]
    allowed = arm["below"] >= value if bound == "lower" else arm["above"] <= value
    return _decide(allowed, not allowed and not inside)


def _why_not(arm: dict[str, Any]) -> str:
    return "measured on a CPU" if arm["on_cpu"] else "no interval: base, or a single run"


def _decide(yes: bool, no: bool) -> str:
    return SUPPORTED if yes else CONTRADICTED if no else "the intervals overlap"


def _row(
    claim: dict[str, Any], claimed: str, verdicts: list[str], seen: list[str]
) -> dict[str, Any]:
    """Put the verdicts at all numbers of workers together: one "no" outweighs any "yes"."""
    decided = {verdict for verdict in verdicts if verdict in (SUPPORTED, CONTRADICTED)}
    reasons = sorted(set(verdicts) - decided) or ([] if verdicts else ["no such runs"])
    verdict = CONTRADICTED if CONTRADICTED in decided else SUPPORTED if decided else UNDECIDED
    return {
        "statement": claim["statement"],
        "claim": claimed,
        "place": claim["place"],
        "ours": "; ".join(seen),
        "verdict": verdict,
        "why": "; ".join(reasons),
    }


def accuracy_claims(points: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return one row per study and stated comparison of final accuracies: `COLUMNS`.

    `points` are those of `accuracy.accuracy_vs_batch_size`. Two arms differ if the ranges of their
    runs lie apart, and are alike if they touch. Statements about curves (Fig. 9) are not judged.
    """
    claims = paper.orderings[
        (paper.orderings["quantity"] == "top1") & (paper.orderings["figure"] == "Fig. 8b")
    ]
    ours = points[(points["source"] == "measured") & (points["optimizer"] == "sgd")]
    rows = [
        row
        for study, arms in ours.groupby("study")
        for claim in claims.to_dict("records")
        for row in _judged(str(study), claim, arms)
    ]
    return pd.DataFrame(rows, columns=ACCURACY_COLUMNS).drop_duplicates(ignore_index=True)


def _judged(study: str, claim: dict[str, Any], arms: pd.DataFrame) -> list[dict[str, Any]]:
    small, large = arms["global_batch_size"].min(), arms["global_batch_size"].max()
    words = {"greater": "above", "similar": "like"}[claim["relation"]]
    if claim["compared"] == "schedule":
        batch = small if claim["world_size_max"] <= LAST_SMALL_WORLD else large
        one, other = (_arm(arms, claim[side], batch) for side in ("left", "right"))
        names = [style.schedule_name(claim[side]) for side in ("left", "right")]
        theirs = _batches(claim)
        text = f"{names[0]} {words} {names[1]} ({theirs}); here at {batch}"
        return [_accuracy_row(study, claim, text, one, other)]
    # The fall of accuracy with the batch size, for each schedule.
    schedules = arms["schedule"].drop_duplicates()
    return [
        _accuracy_row(
            study,
            claim | {"relation": "greater"},
            f"{style.schedule_name(name)}: lower at large batches; here {small} against {large}",
            _arm(arms, name, small),
            _arm(arms, name, large),
        )
        for name in schedules
    ]


def _batches(claim: dict[str, Any]) -> str:
    low, high = (64 * int(claim[f"world_size_{end}"]) for end in ("min", "max"))
    return f"batch {low:,}" if low == high else f"batches {low:,} to {high:,}"


def _arm(arms: pd.DataFrame, schedule: str, batch: int) -> dict[str, Any] | None:
    chosen = arms[(arms["schedule"] == schedule) & (arms["global_batch_size"] == batch)]
    chosen = chosen[chosen["n"] > 0]
    return chosen.iloc[0].to_dict() if len(chosen) == 1 else None


def _accuracy_row(
    study: str,
    claim: dict[str, Any],
    text: str,
    one: dict[str, Any] | None,
    other: dict[str, Any] | None,
) -> dict[str, Any]:
    row = {"study": study, "statement": claim["statement"], "claim": text, "place": claim["place"]}
    if one is None or other is None:
        return row | {"ours": "", "verdict": NOT_RUN}
    shown = [f"{100 * arm['value']:.1f} % (n = {arm['n']})" for arm in (one, other)]
    return row | {
        "ours": " against ".join(shown),
        "verdict": _verdict(claim["relation"], one, other),
    }


def _verdict(relation: str, one: dict[str, Any], other: dict[str, Any]) -> str:
    if min(one["n"], other["n"]) < 2:
        return SINGLE
    above, below = one["low"] > other["high"], one["high"] < other["low"]
    if relation == "similar":
        return OPPOSITE if above or below else SAME
    return SAME if above else OPPOSITE if below else ALIKE
