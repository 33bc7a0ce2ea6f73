"""Which studies would measure what a statement is about, read from the studies themselves."""

from functools import cache

from ddl_core.analysis.claims import terms
from ddl_core.analysis.claims.statements import (
    EPOCHS,
    KINDS,
    LOCAL_BATCH,
    Part,
    Statement,
    sizes_needed,
)
from ddl_core.analysis.paper import covers
from ddl_core.records.paths import STUDIES
from ddl_core.spec.run import RunSpec
from ddl_core.spec.study import Study


def where_to_measure(statement: Statement) -> str:
    """Return which studies plan all runs that `statement` is about, or that none does."""
    open_needs = {need for part in statement.parts for need in _needs(part)}
    chosen = []
    studies = _gpu_studies()
    while open_needs:
        met = {name: {n for n in open_needs if _plans(studies[name], n)} for name in studies}
        best = max(met, key=lambda name: len(met[name]))
        if not met[best]:
            break
        chosen.append(f"studies/{best}.yaml")
        open_needs -= met[best]
    if chosen:
        return f"planned {'in part ' if open_needs else ''}in {' and '.join(chosen)}"
    how = _CHANGED.get(statement.kind, "")
    return f"no study plans it: studies/juwels_booster.yaml and _native.yaml would{how}"


_CHANGED = {
    "runtime": f" with {EPOCHS} epochs",
    "kernel time": " with profile_steps, or under Nsight Systems",
}


@cache
def _gpu_studies() -> dict[str, list[RunSpec]]:
    """Return the first repeat of every study that asks for GPUs."""
    studies = [Study.load(path) for path in sorted(STUDIES.glob("*.yaml"))]
    first = {study.name: [run for run in study.expand() if not run.repeat] for study in studies}
    return {name: runs for name, runs in first.items() if runs[0].device == "cuda"}


Need = tuple[Part, tuple[tuple[str, str], ...], int]


def _needs(part: Part) -> list[Need]:
    """Return what must run: at each end of the range, each side of the comparison."""
    by_column = part.compared in ("strategy", "loader", "model", "schedule")
    sides = [{part.compared: side} for side in (part.left, part.right)] if by_column else [{}]
    if part.compared == "global_batch_size":
        sizes = {int(batch) // LOCAL_BATCH for batch in (part.left, part.right)}
    else:
        sizes = sizes_needed(part)
    named = [tuple(sorted({**part.where, **side}.items())) for side in sides]
    return [(part, where, size) for where in named for size in sorted(sizes)]


def _plans(runs: list[RunSpec], need: Need) -> bool:
    part, where, size = need
    return any(
        all(covers(wanted, str(getattr(run, name))) for name, wanted in where)
        and _serves(part, run)
        and run.global_batch_size == size * LOCAL_BATCH
        for run in runs
    )


def _serves(part: Part, run: RunSpec) -> bool:
    """Say whether a run tells of the quantity at all, on the paper's terms."""
    kind = KINDS[part.quantity]
    about = run.model_dump()
    if kind == "accuracy":
        return terms.of_learning(about)
    if not terms.of_speed(about):
        return False
    if kind == "runtime":
        return run.epochs == EPOCHS and not run.window_steps
    return kind != "kernel time" or run.profile_steps > 0 or run.nsys
