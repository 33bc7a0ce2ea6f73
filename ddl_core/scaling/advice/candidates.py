"""What may be run, what it takes, which limits that keeps, and which of it nothing beats."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from ddl_core.errors import SpecError
from ddl_core.scaling.advice.accuracy import Accuracy, Span
from ddl_core.scaling.advice.evidence import Evidence
from ddl_core.scaling.checks import positive
from ddl_core.scaling.fit import band

Verdict = Literal["kept", "open", "broken"]

SECONDS = 3600.0  # of an hour
_J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Limits:
    """What a training may take at most, and reach at least; None is no limit.

    Attributes
    ----------
    deadline
        Hours.
    node_hours
        Nodes times hours.
    energy
        kWh, of what the records' energy counts.
    accuracy
        Top-1, percent.
    """

    deadline: float | None = None
    node_hours: float | None = None
    energy: float | None = None
    accuracy: float | None = None

    def __post_init__(self) -> None:
        for name, value in self.set().items():
            positive(**{name: value})
        if self.accuracy is not None and self.accuracy > 100:
            raise SpecError(f"accuracy={self.accuracy!r} has to be at most 100 percent")

    def set(self) -> dict[str, float]:
        """Return the limits that there are, by name."""
        pairs = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in pairs if value is not None}


@dataclass(frozen=True, eq=False)  # one is itself alone: it holds arrays
class Candidate:
    """An arm on so many ranks, and what it takes and reaches: a value and its 90 % band.

    ``energy`` and ``accuracy`` are None where nothing is known; ``schedules`` are alike.
    """

    evidence: Evidence
    ranks: int
    nodes: int
    deadline: Span
    node_hours: Span
    energy: Span | None
    accuracy: Span | None
    schedules: tuple[str, ...]

    @property
    def arm(self) -> tuple[str, str]:
        """Strategy and loader."""
        return self.evidence.strategy, self.evidence.loader

    @property
    def global_batch_size(self) -> int:
        """Images of a step."""
        return self.ranks * self.evidence.training.local_batch_size

    @property
    def beyond(self) -> float:
        """How many times outside the measured numbers of ranks; 1 is inside."""
        return self.evidence.beyond(self.ranks)

    def verdicts(self, limits: Limits) -> dict[str, Verdict]:
        """Return of each limit whether it is kept, surely, perhaps or not."""
        return {name: _verdict(name, getattr(self, name), most) for name, most in _items(limits)}

    def worst(self, limits: Limits) -> Verdict:
        """Return the worst of the verdicts."""
        found = self.verdicts(limits).values()
        return next((one for one in ("broken", "open") if one in found), "kept")

    def excess(self, limits: Limits) -> float:
        """Return by how much the worst end of a band is beyond its limit, as a logarithm."""
        return max(_excess(name, getattr(self, name), most) for name, most in _items(limits))


def _items(limits: Limits) -> Iterable[tuple[str, float]]:
    return limits.set().items()


def _verdict(name: str, span: Span | None, limit: float) -> Verdict:
    if span is None:
        return "open"
    good, bad = _ends(name, span)
    if _excess(name, span, limit) <= 0:
        return "kept"
    reached = good >= limit if name == "accuracy" else good <= limit
    return "open" if reached and good != bad else "broken"


def _ends(name: str, span: Span) -> tuple[float, float]:
    """Return the good and the bad end of a band."""
    return (span.high, span.low) if name == "accuracy" else (span.low, span.high)


def _excess(name: str, span: Span | None, limit: float) -> float:
    if span is None:
        return np.inf
    bad = max(_ends(name, span)[1], 1e-12)
    return float(np.log(limit / bad) if name == "accuracy" else np.log(bad / limit))


def candidates(
    evidence: Evidence,
    ranks: Sequence[int],
    gpus_per_node: int,
    images: int,
    epochs: int,
    accuracy: Accuracy | None,
) -> list[Candidate]:
    """Return an arm on each number of ranks on which an epoch has a whole step.

    The time is that of training: without evaluation, checkpoints, start and queue.

    Parameters
    ----------
    evidence
        Of the arm.
    ranks
        Numbers of ranks.
    gpus_per_node
        Of the nodes that are counted.
    images, epochs
        Of the training.
    accuracy
        What is known of it.
    """
    batch = evidence.training.local_batch_size
    counts = [one for one in ranks if one * batch <= images]
    if not counts:
        return []
    hours = band(epochs * evidence.epoch_s(images, counts) / SECONDS, evidence.noise)
    ends = zip(hours.value, hours.low, hours.high, strict=True)
    return [
        _candidate(evidence, count, -(-count // gpus_per_node), Span(*map(float, one)), accuracy)
        for count, one in zip(counts, ends, strict=True)
    ]


def _candidate(
    evidence: Evidence, ranks: int, nodes: int, hours: Span, accuracy: Accuracy | None
) -> Candidate:
    batch = ranks * evidence.training.local_batch_size
    schedules, reached = accuracy.at(batch) if accuracy else ((), None)
    return Candidate(
        evidence,
        ranks,
        nodes,
        hours,
        Span(*(nodes * part for part in hours)),
        _energy(evidence, ranks, hours),
        reached,
        schedules,
    )


def _energy(evidence: Evidence, ranks: int, hours: Span) -> Span | None:
    """Return kWh: time x ranks x the measured power of a rank, taken as the same on any number."""
    if evidence.power_w is None:
        return None
    low, high = evidence.power_w
    scale = ranks * SECONDS / _J_PER_KWH
    return Span(hours.value * scale * (low + high) / 2, hours.low * scale * low,
                hours.high * scale * high)  # fmt: skip


def front(found: Sequence[Candidate]) -> list[Candidate]:
    """Return those that no other one beats in both time and node-hours, the fastest first."""
    ordered = sorted(found, key=lambda one: (one.deadline.value, one.node_hours.value))
    kept: list[Candidate] = []
    for one in ordered:
        if not kept or one.node_hours.value < kept[-1].node_hours.value:
            kept.append(one)
    return kept


Others = Literal["surely kept", "perhaps kept", "broken"]


def nearest(found: Sequence[Candidate], limits: Limits) -> dict[str, tuple[Candidate, Others]]:
    """Return for each limit the candidate that comes nearest to it, and what of the other limits.

    Those that surely keep the others come first, then those that perhaps do, then all.
    """
    best: dict[str, tuple[Candidate, Others]] = {}
    for name, most in _items(limits):
        others = Limits(**{key: value for key, value in _items(limits) if key != name})
        known = [one for one in found if getattr(one, name)]
        groups: dict[Others, list[Candidate]] = {
            "surely kept": [one for one in known if one.worst(others) == "kept"],
            "perhaps kept": [one for one in known if one.worst(others) == "open"],
            "broken": known,
        }
        said = next(said for said, group in groups.items() if group)
        best[name] = (
            min(groups[said], key=lambda one: (_excess(name, getattr(one, name), most), one.ranks)),
            said,
        )
    return best
