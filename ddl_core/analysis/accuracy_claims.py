"""What our accuracies say about the paper's. Verdicts are computed, never typed in.

The paper trained ResNet50 on ImageNet with up to 65,536 images a batch. What it says of a batch
size is compared with the same place in our range: its small batches (to 4096, before its first
clear drop) with our smallest, its largest with our largest. So a verdict says whether another task
shows the same, and is no test of the paper's numbers.
"""

from typing import Any

import pandas as pd

from ddl_core.analysis.paper import Paper
from ddl_core.analysis.plot import style

SAME, OPPOSITE, ALIKE = "the same here", "the opposite here", "no difference seen here"
NOT_RUN = "not run here"
SINGLE = "cannot say: a single run"
LAST_SMALL_WORLD = 64  # GPUs of 64 images: a batch of 4096
COLUMNS = ["study", "statement", "claim", "place", "ours", "verdict"]


def orderings(points: pd.DataFrame, paper: Paper) -> pd.DataFrame:
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
    return pd.DataFrame(rows, columns=COLUMNS).drop_duplicates(ignore_index=True)


def _judged(study: str, claim: dict[str, Any], arms: pd.DataFrame) -> list[dict[str, Any]]:
    small, large = arms["global_batch_size"].min(), arms["global_batch_size"].max()
    words = {"greater": "above", "similar": "like"}[claim["relation"]]
    if claim["compared"] == "schedule":
        batch = small if claim["world_size_max"] <= LAST_SMALL_WORLD else large
        one, other = (_arm(arms, claim[side], batch) for side in ("left", "right"))
        names = [style.SCHEDULE_NAMES[claim[side]] for side in ("left", "right")]
        theirs = _batches(claim)
        text = f"{names[0]} {words} {names[1]} ({theirs}); here at {batch}"
        return [_row(study, claim, text, one, other)]
    # The fall of accuracy with the batch size, for each schedule.
    schedules = arms["schedule"].drop_duplicates()
    return [
        _row(
            study,
            claim | {"relation": "greater"},
            f"{style.SCHEDULE_NAMES[name]}: lower at large batches; here {small} against {large}",
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


def _row(
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
