"""Advice in words and rows, for the terminal, the notebook and the figure."""

from itertools import compress

from ddl_core.scaling.advice.accuracy import MARGIN
from ddl_core.scaling.advice.advise import UNITS, Advice
from ddl_core.scaling.advice.candidates import Candidate
from ddl_core.spec.labels import phrase
from ddl_core.spec.registry import title

Row = dict[str, object]

_CALLED = {"deadline": "time", "node_hours": "cost", "energy": "energy", "accuracy": "accuracy"}


def rows(advice: Advice) -> list[Row]:
    """Return a row for each candidate, the fastest first; numbers are hours, kWh and percent."""
    return [_row(one, advice) for one in sorted(advice.candidates, key=_by_time)]


def _by_time(one: Candidate) -> tuple[float, float]:
    return one.deadline.value, one.node_hours.value


def _row(one: Candidate, advice: Advice) -> Row:
    limits = advice.question.limits
    found: Row = {
        "strategy": one.evidence.strategy,
        "loader": one.evidence.loader,
        "world_size": one.ranks,
        "nodes": one.nodes,
        "global_batch_size": one.global_batch_size,
        "schedules": ";".join(one.schedules),
    }
    for name, span in (
        ("hours", one.deadline),
        ("node_hours", one.node_hours),
        ("energy_kwh", one.energy),
        ("accuracy", one.accuracy),
    ):
        ends = zip(("", "_low", "_high"), span or ("", "", ""), strict=True)
        found |= {f"{name}{end}": value for end, value in ends}
    limit = {f"limit_{name}": getattr(limits, name) or "" for name in UNITS}
    return found | {
        "asked": asked(advice),
        **limit,
        "rests_on": f"{one.evidence.machine}: {'; '.join(one.evidence.rests_on)}",
        "beyond": one.beyond,
        "limits": one.worst(limits),
        "front": str(one in advice.front).lower(),
        "advised": str(one is advice.advised).lower(),
    }


def text(advice: Advice) -> str:
    """Return the answer, why, and what it rests on."""
    one = advice.advised
    verdict = "keeps all limits" if advice.sure else f"not sure, {_doubts(one, advice)}"
    lines = [
        asked(advice),
        "",
        f"  {_named(one)}, batch {one.global_batch_size:,}{_schedules(one)}",
        f"  {_spans(one)}: {verdict}",
        "",
    ]
    lines += [f"{name:<10}{said}" for name, said in _reasons(advice)]
    return "\n".join(lines)


def table(advice: Advice) -> str:
    """Return a line for each that nothing beats, and for all on as many workers as is advised."""
    told = [
        one for one in advice.candidates
        if one in advice.front or one.ranks == advice.advised.ranks
    ]  # fmt: skip
    ordered = sorted(told, key=_by_time)
    head = ["", "arm", "workers", "nodes", "batch", "hours", "node-hours", "kWh", "accuracy %"]
    cells = [[*head, "limits", "beyond"], *(_cells(one, advice) for one in ordered)]
    told_of = [any(row[place] for row in cells[1:]) for place in range(len(cells[0]))]
    kept = [list(compress(row, told_of)) for row in cells]
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in kept
    ]
    return "\n".join([*lines, "", _KEY])


_KEY = (
    "> advised, * nothing is both faster and cheaper; brackets: 90 % bands; beyond: times outside "
    "the measured numbers of workers"
)


def _cells(one: Candidate, advice: Advice) -> list[str]:
    mark = ">" if one is advice.advised else "*" if one in advice.front else ""
    return [
        mark,
        _arm(one),
        str(one.ranks),
        str(one.nodes),
        str(one.global_batch_size),
        str(one.deadline),
        str(one.node_hours),
        str(one.energy or ""),
        str(one.accuracy or ""),
        one.worst(advice.question.limits),
        f"{one.beyond:g}" if one.beyond > 1 else "",
    ]


def asked(advice: Advice) -> str:
    """Return the question in words."""
    of = advice.question
    limits = ", ".join(_limit(name, value) for name, value in of.limits.set().items())
    machine = f", as if it were {of.as_if}" if of.as_if else ""
    return (
        f"{title('model', of.model)} on {phrase('dataset', of.dataset)}, {of.epochs} "
        f"epochs of {of.epoch_images:,} images, on {of.place.title}{machine}; {limits}"
    )


def _limit(name: str, value: float) -> str:
    side = "at least" if name == "accuracy" else "at most"
    return f"{_CALLED[name]} {side} {value:g} {UNITS[name]}"


def _reasons(advice: Advice) -> list[tuple[str, str]]:
    one, found = advice.advised, []
    if lost := _lost(advice):
        found.append(("warning", lost))
    found.append(("why", _why(advice)))
    if advice.alike:
        names = "; ".join(map(_arm, advice.alike))
        found.append(("alike", f"on as many workers the evidence does not tell it from: {names}"))
    for other in advice.open[:1]:
        found.append(("better?", f"{_named(other)}, {_spans(other)}: {_doubts(other, advice)}"))
    found.append(("evidence", f"{one.evidence.machine}: {'; '.join(one.evidence.rests_on)}"))
    if one.accuracy and advice.accuracy:
        found.append(("", f"accuracy: {advice.accuracy.rests_on}"))
    found.append(("measured", _reach(one)))
    found.append(("not in it", "evaluation, checkpoints, start-up and waiting in a queue"))
    found.append(("next run", _next(advice)))
    found += [("left out", said) for said in advice.left_out]
    return found


def _why(advice: Advice) -> str:
    limits = advice.question.limits
    total = len(advice.candidates)
    safe = sum(one.worst(limits) == "kept" for one in advice.eligible)
    if not advice.sure:
        return f"none of {total} candidates surely keeps all limits; this one comes nearest"
    best = "takes the fewest node-hours" if limits.deadline is not None else "is the fastest"
    kept = "all limits"
    if limits.accuracy is None and advice.advised.accuracy:
        kept += f" and the best accuracy within {MARGIN:g} points"
    inside = sum(one.worst(limits) == "kept" and one.beyond == 1 for one in advice.eligible)
    of = f", {inside} of them within the measured numbers of workers" if 0 < inside < safe else ""
    return f"of {total} candidates {safe} surely keep {kept}{of}, and this one {best}"


def _lost(advice: Advice) -> str:
    """Say how much accuracy is given up where nobody set a limit; nothing if it is none."""
    known = [one for one in advice.candidates if one.accuracy]
    one = advice.advised
    if advice.question.limits.accuracy is not None or not known or not one.accuracy:
        return ""
    best = max(known, key=lambda one: one.accuracy.value if one.accuracy else 0.0)
    lost = (best.accuracy.value if best.accuracy else 0.0) - one.accuracy.value
    if lost <= MARGIN:
        return ""
    return (
        f"accuracy is {lost:.3g} percentage points below the best known here ({best.accuracy} % by "
        f"{_named(best)}), which no candidate reaches within these limits; raise a limit, or say "
        "with --accuracy what is enough"
    )


def _doubts(one: Candidate, advice: Advice) -> str:
    limits = advice.question.limits
    open_ones = [name for name, said in one.verdicts(limits).items() if said != "kept"]
    known = [
        f"{_CALLED[name]} {getattr(one, name)}" if getattr(one, name)
        else f"{_CALLED[name]}, of which nothing is known"
        for name in open_ones
    ]  # fmt: skip
    return f"open is {', '.join(known)}"


def _reach(one: Candidate) -> str:
    sizes = one.evidence.sizes
    told = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
    told = f"on {told} workers, {one.evidence.gpus_per_node} a node"
    if one.beyond == 1:
        between = "" if one.ranks in sizes else f"; {one.ranks} lies between"
        return f"{told}{between}"
    return f"{told}; {one.ranks} is extrapolated {one.beyond:g} times"


def _next(advice: Advice) -> str:
    run = advice.next_run
    if run is None:
        return "none would narrow the time: what is left is how much single runs differ"
    what = "one epoch of it" if run.work == "train" else "the loader alone (work: load), one epoch"
    return (
        f"{what} on {run.ranks} workers, about {run.node_hours:.2g} node-hours: the longest time "
        f"that is thinkable is {run.before:.2f} times the shortest, and then about {run.after:.2f}"
    )


def _named(one: Candidate) -> str:
    nodes = f"{one.nodes} node{'s' if one.nodes > 1 else ''}"
    return f"{_arm(one)}, {one.ranks} worker{'s' if one.ranks > 1 else ''} on {nodes}"


def _arm(one: Candidate) -> str:
    return f"{title('strategy', one.evidence.strategy)}, {title('loader', one.evidence.loader)}"


def _schedules(one: Candidate) -> str:
    *most, last = one.schedules or ("",)
    return f", schedule {', '.join(most)}{' or ' if most else ''}{last}" if last else ""


def _spans(one: Candidate) -> str:
    parts = [
        (one.deadline, "h"), (one.node_hours, "node-hours"), (one.energy, "kWh"),
        (one.accuracy, "% accuracy"),
    ]  # fmt: skip
    return ", ".join(f"{span} {unit}" for span, unit in parts if span)
