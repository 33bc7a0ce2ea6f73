"""Advice as text, and as rows for the notebook and the figure."""

import math

from ddl_core.registry import title
from ddl_tools.estimate import Estimate
from ddl_tools.markdown import aligned
from ddl_tools.names import plural
from ddl_tools.scaling.accuracy import MARGIN
from ddl_tools.scaling.advise import SAME_COST, UNITS, Advice, risks_accuracy
from ddl_tools.scaling.options import Option
from ddl_tools.scaling.paper import ACCURACY_MODEL

Row = dict[str, object]

_NAMES = {"deadline": "time", "node_hours": "cost", "accuracy": "accuracy"}


def rows(advice: Advice) -> list[Row]:
    """Return a row for each option, fastest first; hours, node-hours and percent."""
    return [_row(one, advice) for one in sorted(advice.options, key=_by_time)]


def _by_time(one: Option) -> tuple[float, float]:
    return one.deadline.value, one.node_hours.value


def _row(one: Option, advice: Advice) -> Row:
    limits, candidate = advice.request.limits, one.candidate
    found: Row = {
        "strategy": candidate.spec.strategy,
        "loader": candidate.spec.loader,
        "details": candidate.details,
        "world_size": one.ranks,
        "nodes": one.nodes,
        "global_batch_size": one.global_batch_size,
        "schedules": ";".join(one.schedules),
    }
    spans = {"hours": one.deadline, "node_hours": one.node_hours, "accuracy": one.accuracy}
    for name, span in spans.items():
        found |= (span or Estimate(math.nan)).columns(name)
    return found | {
        "request": request(advice),
        **{f"limit_{name}": getattr(limits, name) for name in UNITS},
        "sources": _sources(one),
        "extrapolation": one.extrapolation,
        "limits": _verdict(one, advice),
        "advised": one is advice.advised,
    }


def text(advice: Advice) -> str:
    """Return the answer, the reasons and the sources."""
    one = advice.advised
    verdict = "meets all limits" if advice.certain else f"uncertain: {_uncertain(one, advice)}"
    verdict = f": {verdict}" if advice.request.limits.set() else ""
    lines = [
        request(advice),
        "",
        f"  {_full_name(one)}, batch {one.global_batch_size:,}{_schedules(one)}",
        f"  {_spans(one)}{verdict}",
        "",
    ]
    return "\n".join([*lines, *(f"{name:<10}{reason}" for name, reason in _reasons(advice))])


def table(advice: Advice) -> str:
    """Return a line for each option of the advised candidate or on as many ranks as is advised."""
    advised = advice.advised
    head = ["", "configuration", "GPUs", "nodes", "batch", "hours", "node-hours", "accuracy %"]
    cells = [[*head, "limits", "extrapolated"]] + [
        _cells(one, advice)
        for one in sorted(advice.options, key=_by_time)
        if one.candidate is advised.candidate or one.ranks == advised.ranks
    ]
    return "\n".join([*aligned(cells), "", _KEY])


_KEY = (
    "> advised; brackets: stated bounds or 90 % bands; extrapolated: times beyond the largest "
    "measured or stated number of GPUs"
)


def _cells(one: Option, advice: Advice) -> list[str]:
    mark = ">" if one is advice.advised else ""
    sizes = one.ranks, one.nodes, one.global_batch_size
    spans = one.deadline, one.node_hours, one.accuracy or ""
    beyond = f"{one.extrapolation:g}" if one.extrapolation > 1 else ""
    return [mark, one.candidate.name, *map(str, (*sizes, *spans)), _verdict(one, advice), beyond]


def _verdict(one: Option, advice: Advice) -> str:
    limits = advice.request.limits
    return one.worst(limits) if limits.set() else ""


def request(advice: Advice) -> str:
    """Return the request in words."""
    of = advice.request
    conditions = [f"{plural(of.gpus, 'GPU')} (ranks)"] if of.gpus else []
    conditions += [_limit(name, value) for name, value in of.limits.set().items()]
    return f"{of.title}, on {of.machine.title}; {', '.join(conditions)}"


def _limit(name: str, value: float) -> str:
    side = "at least" if name == "accuracy" else "at most"
    return f"{_NAMES[name]} {side} {value:g} {UNITS[name]}"


def _reasons(advice: Advice) -> list[tuple[str, str]]:
    one, found = advice.advised, []
    if lost := _lost(advice):
        found.append(("warning", lost))
    if unknown := unknown_accuracy(advice):
        found.append(("warning" if risks_accuracy(one, advice.loss_from) else "accuracy", unknown))
    found.append(("why", _why(advice)))
    if advice.equal:
        names = "; ".join(one.candidate.name for one in advice.equal)
        found.append(("equal", f"indistinguishable on as many GPUs: {names}"))
    found.append(("sources", _sources(one)))
    if one.accuracy and advice.accuracy:
        found.append(("", f"accuracy: {advice.accuracy.source}"))
    found.append(("known", _known_sizes(one)))
    found.append(("excluded", "evaluation, checkpoints, start-up and waiting in a queue"))
    return found


def _why(advice: Advice) -> str:
    limits = advice.request.limits
    total = len(advice.options)
    safe = [one for one in advice.eligible if one.worst(limits) == "met"]
    if not advice.certain:
        return f"none of {total} options certainly meets all limits; this one comes nearest"
    best, those = "is the fastest", []
    risky = [risks_accuracy(one, advice.loss_from) for one in safe]
    if limits.deadline is not None:
        share = f"{100 * SAME_COST:g} %"
        best = f"has the smallest batch of those within {share} of the fewest node-hours"
    elif any(risky) and not all(risky):
        those.append(f"have a batch below {advice.loss_from:,}")
    if advice.advised.extrapolation == 1 and any(one.extrapolation > 1 for one in safe):
        those.append("are not extrapolated")
    if those:
        best += f" of those that {' and '.join(those)}"
    kept = ["meet all limits"] if limits.set() else []
    if limits.accuracy is None and advice.advised.accuracy:
        kept.append(f"have the best accuracy within {plural(MARGIN, 'percentage point')}")
    met = f" {len(safe)} {' and '.join(kept)}, and" if kept else ""
    return f"of {plural(total, 'option')}{met} this one {best}"


def unknown_accuracy(advice: Advice) -> str:
    """Return that the accuracy of the advised option is unknown; empty if it is known."""
    one, of = advice.advised, advice.request
    if one.accuracy:
        return ""
    return (
        f"the accuracy of batch {one.global_batch_size:,} is unknown after {of.epochs} epochs of "
        f"{of.epoch_images:,} images; the paper's {title('model', ACCURACY_MODEL)} on ImageNet "
        f"lost accuracy from batch {advice.loss_from:,} on"
    )


def _lost(advice: Advice) -> str:
    """Return how much accuracy is lost where no limit asks for it; empty if none is."""
    one = advice.advised
    if advice.request.limits.accuracy is not None or not one.accuracy:
        return ""
    known = [(option.accuracy, option) for option in advice.options if option.accuracy]
    accuracy, best = max(known, key=lambda pair: pair[0].value)
    lost = accuracy.value - one.accuracy.value
    if lost <= MARGIN:
        return ""
    return (
        f"accuracy is {lost:.3g} percentage points below the best known ({accuracy} % by "
        f"{_full_name(best)}), which no option reaches within these limits; raise a limit, or set "
        "--accuracy to the accuracy that suffices"
    )


def _uncertain(one: Option, advice: Advice) -> str:
    verdicts = one.verdicts(advice.request.limits).items()
    names = [name for name, verdict in verdicts if verdict != "met"]
    return ", ".join(f"{_NAMES[name]} {getattr(one, name) or '(unknown)'}" for name in names)


def _known_sizes(one: Option) -> str:
    sizes = one.candidate.sizes
    known = " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))
    known = f"on {known} GPUs (ranks), {one.candidate.spec.gpus_per_node} per node"
    if one.extrapolation > 1:
        return f"{known}; {one.ranks} is extrapolated {one.extrapolation:g} times"
    return known if one.ranks in sizes else f"{known}; {one.ranks} lies between"


def _sources(one: Option) -> str:
    return f"{one.candidate.machine}: {'; '.join(one.candidate.sources)}"


def _full_name(one: Option) -> str:
    return (
        f"{one.candidate.name}, {plural(one.ranks, 'GPU')} (ranks) on {plural(one.nodes, 'node')}"
    )


def _schedules(one: Option) -> str:
    *most, last = one.schedules or ("",)
    return f", schedule {', '.join(most)}{' or ' if most else ''}{last}" if last else ""


def _spans(one: Option) -> str:
    parts = [(one.deadline, "h"), (one.node_hours, "node-hours"), (one.accuracy, "% accuracy")]
    return ", ".join(f"{span} {unit}" for span, unit in parts if span)
