"""The statements of the two other papers, each with a verdict, why, and what is seen here.

Rankings of libraries are judged wherever these were measured at equal settings, since the papers
speak of several machines: the verdict is of the machine and the sizes that it names, and of no
other. What needs another machine, or is not said well enough, is not testable, and why stands
beside it (docs/reading_the_seeds.md). Comparisons of a statement are one family, see `decide`.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd

from ddl_core.analysis import arms as pooling
from ddl_core.analysis import estimates
from ddl_core.analysis.claims import accuracy, speed
from ddl_core.analysis.claims.decide import decided
from ddl_core.analysis.claims.speed import Arm, Evidence
from ddl_core.analysis.estimates import Estimate
from ddl_core.analysis.figures import time_to_accuracy
from ddl_core.analysis.plot import style
from ddl_core.analysis.seed_papers import SeedPapers
from ddl_core.analysis.tables import not_emulated, whole
from ddl_core.spec.labels import called

CONFIRMED, CONTRADICTED = "confirmed here", "contradicted here"
UNDECIDED, NOT_TESTABLE = "cannot say", "not testable here"
COLUMNS = ["statement", "paper", "claim", "place", "verdict", "why", "here"]

_WHY = {
    "H01": "said of 256 GPUs; no number, base or batch is stated (T2, T4)",
    "H02": "quoted as an example; neither source nor framework is named",
    "M01": "said of 12 V100; the base is not named (M6)",
    "M02": "said of more than 56 CPUs; what a CPU is, is not said (M5)",
    "O03": "which shortcuts, and compared with what, is not said (M8): here all libraries have the "
    "same settings",
    "O04": "said of CPUs beside V100 (M4)",
    "O05": "said of CPUs beside V100, and perhaps of their speed-up (M10)",
    "O06": "neither the accuracy nor the number of processors is stated (M3)",
}


class Seen(NamedTuple):
    """One comparison in the records, the ratio of two arms, or a value of one."""

    text: str
    estimate: Estimate


def judged(runs: pd.DataFrame, windows: pd.DataFrame | None, seeds: SeedPapers) -> pd.DataFrame:
    """Return every statement of the two papers with its verdict: `COLUMNS`.

    Our own arithmetic on them has none. See `runs_table` and `windows_table` for the records.
    """
    runs = not_emulated(whole(runs))
    runs = runs[runs.groupby("study")["library"].transform("nunique") > 1]
    evidence = speed.throughput(runs, windows)
    stated = seeds.statements[~seeds.statements["place"].str.startswith("derived")]
    claims = stated.assign(summary=stated["quantity"].str.replace("_", " ") + " " +
                           stated["printed"])  # fmt: skip
    rows = [
        _row(one, evidence, runs, seeds)
        for one in pd.concat([claims, seeds.orderings]).to_dict("records")
    ]
    return pd.DataFrame(rows, columns=COLUMNS).astype("string")


def _row(one: dict[str, Any], evidence: Evidence, runs: pd.DataFrame, seeds: SeedPapers) -> Any:
    name = one["statement"]
    row = {"statement": name, "paper": one["paper"], "claim": one["summary"], "place": one["place"]}
    if name in ("O01", "O02"):
        found = {side: list(_compared(one, side, evidence)) for side in one["right"].split(";")}
        return row | _ranking(found)
    look = {
        "H01": lambda: _speedups(evidence, "tensorflow horovod"),
        "M01": lambda: _speedups(evidence, "torch ddp"),
        "O03": lambda: _accuracies(runs, one),
        "O04": lambda: _speedups(evidence, "torch ddp"),
        "O06": lambda: _seconds(runs, seeds),
    }
    here = "; ".join(look[name]()) if name in look else ""
    return row | {"verdict": NOT_TESTABLE, "why": _WHY[name], "here": here}


def _ranking(found: dict[str, list[Seen]]) -> dict[str, str]:
    """Return verdict, why and what was seen of "greater than each of these sides"."""
    seen = [one for side in found.values() for one in side]
    missing = [side for side, some in found.items() if not some]
    lacks = f"not measured with several numbers of workers: {', '.join(missing)}"
    if not seen:
        return {"verdict": UNDECIDED, "why": lacks, "here": ""}
    words = [estimates.decision(one.estimate) for one in seen]
    here = "; ".join(f"{one.text}, {word}" for one, word in zip(seen, words, strict=True))
    counts = {word: words.count(word) for word in set(words)}
    why = f"of {len(words)} comparisons " + ", ".join(
        f"{number} {word}" for word, number in sorted(counts.items())
    )
    done = counts.get(estimates.GREATER) == len(words) and not missing
    refuted = any(decided([min(1.0, 2 * estimates.p_less(one.estimate)) for one in seen]))
    verdict = CONTRADICTED if refuted else CONFIRMED if done else UNDECIDED
    return {"verdict": verdict, "why": f"{why}; {lacks}" if missing else why, "here": here}


def _compared(one: dict[str, Any], side: str, evidence: Evidence) -> Iterator[Seen]:
    """Return E of the left side / E of each arm of one of the right, at equal settings."""
    same = [name for name in pooling.KEYS if name not in ("library", "strategy")]
    for left, right in itertools.product(_of(evidence, one["left"]), _of(evidence, side)):
        bases = [_base(arm, evidence) for arm in (left, right)]
        alike = all(left.about[name] == right.about[name] for name in same)
        if alike and bases[0] and bases[1] and bases[0].workers == bases[1].workers:
            ratio = speed.efficiency_ratio(evidence.turns, (left, bases[0]), (right, bases[1]))
            text = f"E of {_name(left)} / {_name(right)} {speed.interval(ratio)}"
            yield Seen(f"{_where(left.about)}: {text}", ratio)


def _of(evidence: Evidence, side: str) -> list[Arm]:
    """Return the arms of e.g. ``"torch ddp"``, or of a library, however it is distributed."""
    library, _, strategy = side.partition(" ")
    return [
        arm
        for arm in evidence.arms
        if arm.about["library"] == library
        and (arm.about["strategy"] == strategy if strategy else arm.about["strategy"] != "single")
    ]


def _base(arm: Arm, evidence: Evidence) -> Arm | None:
    """Return the same arm with the fewest workers, if these are fewer."""
    keys = [name for name in pooling.KEYS if name != "world_size"]
    fewer = [
        other
        for other in evidence.arms
        if other.workers < arm.workers
        and all(other.about[name] == arm.about[name] for name in keys)
    ]
    return min(fewer, key=lambda other: other.workers, default=None)


def _speedups(evidence: Evidence, side: str) -> list[str]:
    """Return the speed-up of each arm of a side that was measured with fewer workers too."""
    texts = []
    for arm in _of(evidence, side):
        if base := _base(arm, evidence):
            ratio = speed.ratio(evidence.turns, arm, base)
            text = f"speed-up of {_name(arm)} {speed.interval(ratio)}, base {base.workers}"
            texts.append(f"{_where(arm.about)}: {text}")
    return texts


def _accuracies(runs: pd.DataFrame, one: dict[str, Any]) -> list[str]:
    """Return the difference of two arms' last accuracies, repeat by repeat."""
    made = pooling.made_runs(runs)
    made = made[made["top1"].notna() & ~made["lost"]]
    made = style.with_framework(made)
    texts = []
    same = [name for name in pooling.KEYS if name not in ("library", "strategy")]
    for _, part in made.groupby(same):
        sides = [part[part["framework"] == one[side]] for side in ("left", "right")]
        if any(side.empty for side in sides):
            continue
        values = [side.set_index("repeat")["top1"].astype(float) for side in sides]
        difference = accuracy.difference(*values)
        word = estimates.decision(difference, accuracy.MARGIN)
        names = " - ".join(style.strategy_name(one[side]) for side in ("left", "right"))
        where = _where(part.iloc[0].to_dict())
        texts.append(f"{where}: {names} {accuracy.interval(difference)} points, {word}")
    return texts


def _seconds(runs: pd.DataFrame, seeds: SeedPapers) -> list[str]:
    """Return how many seconds each arm of PyTorch and TensorFlow trained to our target."""
    table = time_to_accuracy.points(runs, seeds)
    table = style.with_framework(table[table["library"].isin(["torch", "tensorflow"])])
    texts = []
    for (study, framework), part in table.groupby(["study", "framework"], sort=False):
        sizes = ", ".join(
            f"{row['world_size']}: " + ("not reached" if pd.isna(row["value"]) else
                                        f"{row['value']:.1f} s")
            for row in part.sort_values("world_size").to_dict("records")
        )  # fmt: skip
        target = f"{part['target'].iloc[0]:.0%}"
        texts.append(f"{study}: {style.strategy_name(framework)} to {target} by workers {sizes}")
    return texts


def _name(arm: Arm) -> str:
    return called(arm.about["library"], arm.about["strategy"])


def _where(about: dict[str, Any]) -> str:
    """Return where an arm was measured, e.g. "libraries, 2 workers, 2 CPU cores, ResNet8"."""
    workers = f"{about['world_size']} worker{'s' if about['world_size'] > 1 else ''}"
    machine = f"{about['cpu_cores']} CPU cores" if about["on_cpu"] else str(about["hardware"])
    batch = f"batch {about['local_batch_size']}"
    return ", ".join([about["study"], workers, machine, style.model_name(about["model"]), batch])
