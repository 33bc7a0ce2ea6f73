"""Options: candidates on a number of ranks with time, cost and accuracy, and limits of these."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from ddl_core.errors import SpecError
from ddl_tools.estimate import Estimate
from ddl_tools.scaling.accuracy import Accuracy
from ddl_tools.scaling.candidate import Candidate, positive

Verdict = Literal["met", "uncertain", "violated"]

_ORDER: list[Verdict] = ["met", "uncertain", "violated"]


@dataclass(frozen=True)
class Limits:
    """Limits of a training: hours and node-hours at most, top-1 accuracy in percent at least."""

    deadline: float | None = None
    node_hours: float | None = None
    accuracy: float | None = None

    def __post_init__(self) -> None:
        positive(**self.set())
        if self.accuracy is not None and not 1 < self.accuracy <= 100:
            raise SpecError(
                f"accuracy={self.accuracy!r} has to be above 1 and at most 100: it is in percent, "
                "e.g. 75 and not 0.75"
            )

    def set(self) -> dict[str, float]:
        """Return the limits that there are, by name."""
        pairs = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in pairs if value is not None}


@dataclass(frozen=True, eq=False)
class Option:
    """A candidate on a number of ranks; `deadline` holds the hours, named as the limit.

    ``accuracy`` is None where it is unknown; ``schedules`` are those that reach it.
    """

    candidate: Candidate
    ranks: int
    nodes: int
    deadline: Estimate
    node_hours: Estimate
    accuracy: Estimate | None
    schedules: tuple[str, ...]

    @property
    def global_batch_size(self) -> int:
        """Images of a step."""
        return self.ranks * self.candidate.batch_size

    @property
    def extrapolation(self) -> float:
        """How many times beyond the largest known number of ranks; 1 is within."""
        return self.candidate.extrapolation(self.ranks)

    def verdicts(self, limits: Limits) -> dict[str, Verdict]:
        """Return for each limit whether it is met, by the whole range, a part of it or none."""
        return {
            name: _verdict(name, getattr(self, name), limit) for name, limit in limits.set().items()
        }

    def worst(self, limits: Limits) -> Verdict:
        """Return the worst of the verdicts."""
        return max(self.verdicts(limits).values(), key=_ORDER.index, default="met")

    def violation(self, limits: Limits) -> float:
        """Return by how much the worst end of a range is beyond its limit, as a logarithm."""
        return max(
            _violation(name, getattr(self, name), limit) for name, limit in limits.set().items()
        )


def _verdict(name: str, span: Estimate | None, limit: float) -> Verdict:
    if span is None:
        return "uncertain"
    if _violation(name, span, limit) <= 0:
        return "met"
    reached = span.high >= limit if name == "accuracy" else span.low <= limit
    return "uncertain" if reached and span.low != span.high else "violated"


def _violation(name: str, span: Estimate | None, limit: float) -> float:
    if span is None:
        return np.inf
    if name == "accuracy":
        return float(np.log(limit / max(span.low, 1e-12)))
    return float(np.log(span.high / limit))


def options(
    candidate: Candidate,
    ranks: Sequence[int],
    ranks_per_node: int,
    images: int,
    epochs: int,
    accuracy: Accuracy | None,
) -> list[Option]:
    """Return a candidate on each number of ranks that it covers, if an epoch has a whole step.

    Without `ranks_per_node`, nodes are as in the candidate's runs. The time is that of training:
    without evaluation, checkpoints, start and queue.
    """
    found, per_node = [], ranks_per_node or candidate.spec.gpus_per_node
    for count in ranks:
        batch = count * candidate.batch_size
        if candidate.covers(count) and batch <= images:
            hours, nodes = candidate.hours(count, epochs * images), -(-count // per_node)
            schedules, reached = accuracy.at(batch) if accuracy else ((), None)
            cost = hours.times(nodes)
            found.append(Option(candidate, count, nodes, hours, cost, reached, schedules))
    return found


def nearest(found: Sequence[Option], limits: Limits) -> dict[str, tuple[Option, Verdict]]:
    """Return for each limit the option that comes nearest to it, and the verdict on the others.

    Options that meet the other limits come first, then those that may, then all.
    """
    best: dict[str, tuple[Option, Verdict]] = {}
    for name in limits.set():
        others, alone = replace(limits, **{name: None}), Limits(**{name: limits.set()[name]})
        one = min(
            (one for one in found if getattr(one, name)),
            key=lambda one: (_ORDER.index(one.worst(others)), one.violation(alone), one.ranks),
        )
        best[name] = one, one.worst(others)
    return best
