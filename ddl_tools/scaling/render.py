"""Advice as text, and as rows for the notebook and the figure."""

import math
from pathlib import Path

from ddl_core.files import some
from ddl_core.registry import title
from ddl_tools.estimate import Estimate
from ddl_tools.markdown import aligned, plain
from ddl_tools.names import plural
from ddl_tools.scaling.accuracy import MARGIN, paper_loss
from ddl_tools.scaling.advise import SAME_COST, UNITS, Advice, risks_accuracy
from ddl_tools.scaling.options import Option
from ddl_tools.scaling.paper import ACCURACY_MODEL

Row = dict[str, object]

TEMPLATE = Path(__file__).with_name("advice.j2")
_SCALES = (("hours", "h", 1), ("minutes", "min", 60), ("seconds", "s", 3600))
"""Units of time, their signs, and how many of each an hour has."""


def _scale(hours: float) -> tuple[str, str, int]:
    """Return the largest unit of which a time has one at least."""
    return next((one for one in _SCALES if hours * one[2] >= 1), _SCALES[-1])


def duration(hours: Estimate) -> str:
    """Return a time in the unit that fits it."""
    _, sign, factor = _scale(hours.value)
    return f"{hours.times(factor)} {sign}"


def node_time(hours: Estimate) -> str:
    """Return node-hours, or their parts, as fits."""
    unit, _, factor = _scale(hours.value)
    return f"{hours.times(factor)} node-{unit}"


WORDS = {
    "duration": duration,
    "node_time": node_time,
    "plural": plural,
    "some": some,
    "paper_loss": paper_loss,
    "accuracy_model": title("model", ACCURACY_MODEL),
}
"""Functions and names in the lines of an answer."""
_NAMES = {"deadline": "time", "node_hours": "cost", "accuracy": "accuracy"}
_HEAD = "configuration ranks nodes batch {0} node-{0} accuracy_% limits extrapolated"


FIRST_COLUMNS = "strategy,loader,details,world_size,"  # of a table of options


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
        "sources": f"{candidate.machine}: {'; '.join(candidate.sources)}",
        "extrapolation": one.extrapolation,
        "limits": _verdict(one, advice),
        "advised": one is advice.advised,
    }


def text(advice: Advice) -> str:
    """Return the answer with its reasons and sources, and the table of options."""
    one = advice.advised
    return plain(
        TEMPLATE,
        **WORDS,
        advice=advice,
        request=request(advice),
        uncertain=_uncertain(advice),
        lost=_lost(advice),
        risky=risks_accuracy(one, advice.loss_from),
        same_cost=f"{100 * SAME_COST:g}",
        table=table(advice),
    )


def table(advice: Advice) -> list[str]:
    """Return lines: the options of the advised candidate, and those on as many ranks as advised."""
    advised = advice.advised
    shown = [
        one
        for one in sorted(advice.options, key=_by_time)
        if one.candidate is advised.candidate or one.ranks == advised.ranks
    ]
    unit, _, factor = _scale(max(one.deadline.value for one in shown))
    head = ["", *(name.replace("_", " ") for name in _HEAD.format(unit).split())]
    return aligned([head, *(_cells(one, advice, factor) for one in shown)])


def _cells(one: Option, advice: Advice, factor: int) -> list[str]:
    mark = ">" if one is advice.advised else ""
    sizes = one.ranks, one.nodes, one.global_batch_size
    spans = one.deadline.times(factor), one.node_hours.times(factor), one.accuracy or ""
    beyond = f"{one.extrapolation:g}" if one.extrapolation > 1 else ""
    return [mark, one.candidate.name, *map(str, (*sizes, *spans)), _verdict(one, advice), beyond]


def _verdict(one: Option, advice: Advice) -> str:
    limits = advice.request.limits
    return one.worst(limits) if limits.set() else ""


def request(advice: Advice) -> str:
    """Return the request in words."""
    of = advice.request
    conditions = [plural(of.gpus, "rank")] if of.gpus else []
    conditions += [_limit(name, value) for name, value in of.limits.set().items()]
    return f"{of.title}, on {of.machine.title}; {', '.join(conditions)}"


def _limit(name: str, value: float) -> str:
    side = "at least" if name == "accuracy" else "at most"
    return f"{_NAMES[name]} {side} {value:g} {UNITS[name]}"


def _lost(advice: Advice) -> float:
    """Return the percentage points that are lost where no limit asks for it; 0 if none are."""
    one = advice.advised
    if advice.request.limits.accuracy is not None or not one.accuracy:
        return 0.0
    best = max(option.accuracy.value for option in advice.options if option.accuracy)
    lost = best - one.accuracy.value
    return lost if lost > MARGIN else 0.0


def _uncertain(advice: Advice) -> list[str]:
    """Return the limits that the advised option may violate, each with its range."""
    one = advice.advised
    found = []
    for name, verdict in one.verdicts(advice.request.limits).items():
        if verdict != "met":
            span = getattr(one, name)
            found.append(f"{_NAMES[name]} {f'{span} {UNITS[name]}' if span else '(unknown)'}")
    return found
