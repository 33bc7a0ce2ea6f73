"""Expected time of each part of `make gpu`, said before it begins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.gpu import report
from ddl_core.config import RunSpec
from ddl_tools.launch.study import pending
from ddl_tools.records.ledger import ledger
from ddl_tools.records.paths import Tree

# Seconds of a run on an H100, start included, rounded up; of other studies OTHER_S. Of `accuracy`
# it is a twelfth of what twelve at a time took, when crops were still made on the CPU.
RUN_S = {"gpu_smoke": 6, "two_gpus": 60, "accuracy": 30}
OTHER_S = 40
COMPILE_S = 80  # of the first steps of a run with `compile`
# Minutes that a part needs at least on a GPU, however short the whole is: for one compilation and
# eight pairs of a second each; for eight rounds of four pipelines; for two configurations.
LEAST_MINUTES = {"overhead": 2.5, "loaders": 2.0, "recommend": 4.0}


@dataclass(frozen=True)
class Cost:
    """Cost of one part; `runs`, `compiled` and `needed` are None where a part has no runs."""

    part: str
    most: float  # minutes, after which the part is ended
    runs: int | None = None  # left
    compiled: int | None = None  # of these
    needed: float | None = None  # minutes


def seconds(part: str, spec: RunSpec) -> float:
    """Return how long a run may take on an H100, compilation included."""
    return RUN_S.get(part, OTHER_S) + COMPILE_S * spec.compile


def limits(
    shares: Mapping[str, float], parts: Sequence[str], minutes: float, device: str
) -> dict[str, float]:
    """Return the minutes of each part: its share, or what it needs at least."""
    whole = sum(shares[part] for part in parts)
    least = LEAST_MINUTES if device == "cuda" else {}
    return {part: max(shares[part] / whole * minutes, least.get(part, 0)) for part in parts}


def costs(most: Mapping[str, float], tree: Tree, device: str) -> list[Cost]:
    """Return the cost of each part."""
    found = []
    for part, minutes in most.items():
        if not report.is_study(part):
            found.append(Cost(part, minutes))
            continue
        todo = pending(ledger(report.wanted(part, device), tree))
        specs = [item.spec for item in todo]
        needed = sum(seconds(part, spec) for spec in specs) / 60
        compiled = sum(spec.compile for spec in specs)
        found.append(Cost(part, minutes, len(specs), compiled, needed))
    return found


def table(rows: Sequence[Cost], device: str) -> str:
    """Return the costs as text, with the sums and how to read them."""
    names = ("part", "runs", "compiled", "needs (min)", "at most (min)")
    lines = [names, *(_cells(row) for row in rows)]
    total = Cost(
        "in all",
        sum(row.most for row in rows),
        sum(row.runs or 0 for row in rows),
        sum(row.compiled or 0 for row in rows),
        sum(row.most if row.needed is None else row.needed for row in rows),
    )
    lines.append(_cells(total))
    how = (
        f"needs: on an H100, with {COMPILE_S} s of compilation in each run that compiles; parts "
        "without runs count with their limit, compilation included."
    )
    if device == "cpu":
        how = "A rehearsal: small networks, of which nothing follows for a GPU; ends much earlier."
    text = ["  ".join([f"{one[0]:16}", *(f"{cell:>13}" for cell in one[1:])]) for one in lines]
    return "\n".join(
        [
            *text,
            how,
            *short(rows),
        ]
    )


def short(rows: Sequence[Cost]) -> list[str]:
    """Return a line that names the parts whose runs need longer than their limit, if any do."""
    found = [row for row in rows if row.needed and row.needed > row.most]
    if not found:
        return []
    text = ", ".join(f"{row.part} (needs {row.needed:.1f} min)" for row in found)
    return [
        f"Not all runs fit: {text}. The first start of each configuration comes first; call again "
        "for the rest, which repeats no complete run, or give more --minutes."
    ]


def _cells(row: Cost) -> tuple[str, ...]:
    needed = "" if row.needed is None else f"{row.needed:.1f}"
    runs, compiled = ("" if one is None else str(one) for one in (row.runs, row.compiled))
    return row.part, runs, compiled, needed, f"{row.most:.1f}"
