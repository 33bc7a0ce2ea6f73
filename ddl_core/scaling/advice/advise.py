"""Decide: what keeps the limits, at what cost, how sure, and what would make it surer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ddl_core.errors import DataError, SpecError
from ddl_core.records.gpus import listed
from ddl_core.records.paths import PAPER, Tree
from ddl_core.records.provenance import host
from ddl_core.scaling.advice import own_records, paper, published
from ddl_core.scaling.advice.accuracy import MARGIN, Accuracy, of_paper, of_records
from ddl_core.scaling.advice.candidates import Candidate, Limits, candidates, front, nearest
from ddl_core.scaling.advice.evidence import Evidence
from ddl_core.scaling.advice.next_run import NextRun, next_run
from ddl_core.scaling.checks import positive
from ddl_core.scaling.gradients import resnet
from ddl_core.spec.registry import check_name
from ddl_core.spec.run import IMAGENET_TRAIN_IMAGES

_MOST_RANKS = 1024  # of a cluster, as far as the paper goes


class Site(Protocol):
    """What is needed of a site, as `ddl_core.launch.slurm.site.Site` has it."""

    @property
    def description(self) -> str:
        """What it is, in a line."""

    @property
    def gpus_per_node(self) -> int:
        """0 where ranks compute on the CPU."""


@dataclass(frozen=True)
class Place:
    """Where the training is to run.

    Attributes
    ----------
    name
        Of the site's file; empty: this machine.
    description
        What it is: the site's own words, or the name of this machine's GPU or processor.
    gpus_per_node
        Ranks of a node; 0 where a site has no GPUs, and a node as many as the evidence has.
    """

    name: str
    description: str
    gpus_per_node: int

    @classmethod
    def here(cls) -> "Place":
        """Return this machine: its GPUs, else its cores."""
        if (gpus := listed()) is not None:
            return cls("", gpus.names[0], len(gpus.names))
        found = host()
        return cls("", own_records.machine_name(found), found["cpu_cores"])

    @classmethod
    def of(cls, name: str, site: Site) -> "Place":
        """Return a site of slurm/; `name` may be the path of its file."""
        return cls(Path(name).stem, site.description, site.gpus_per_node)

    @property
    def title(self) -> str:
        """What an answer calls it."""
        return self.name or f"this machine ({self.description})"

    def owns(self, evidence: Evidence) -> bool:
        """Say whether evidence is of this place.

        A site's is what its description names, and what the user's own jobs measured; this
        machine's what has its name.
        """
        if self.name:
            return evidence.in_jobs or evidence.machine in self.description
        return evidence.machine == self.description

    def sizes(self, most_gpus: int | None) -> list[int]:
        """Return the numbers of ranks to look at: of a site whole nodes, each twice the last."""
        most = most_gpus or (_MOST_RANKS if self.name else self.gpus_per_node)
        least = max(self.gpus_per_node, 1) if self.name else 1
        return [least * 2**power for power in range(40) if least * 2**power <= most]


@dataclass(frozen=True)
class Question:
    """What is asked. ``images`` of an epoch, None: as many as ImageNet has.

    ``as_if`` names a machine whose evidence is to be taken in the place of the site's own.
    """

    place: Place
    model: str
    limits: Limits
    dataset: str = "imagenet"
    images: int | None = None
    epochs: int = paper.EPOCHS
    most_gpus: int | None = None
    as_if: str | None = None

    def __post_init__(self) -> None:
        resnet(check_name("model", self.model))
        positive(epochs=self.epochs)
        for name in ("images", "most_gpus"):
            if (value := getattr(self, name)) is not None:
                positive(**{name: value})
        if self.images is None and self.dataset != "imagenet":
            raise SpecError(
                f"dataset={self.dataset!r}: how many images an epoch has is known of imagenet "
                "alone; name images"
            )
        if not self.limits.set():
            raise SpecError(
                "no limit: name one at least of deadline, node_hours, energy and accuracy"
            )

    @property
    def epoch_images(self) -> int:
        """Images of an epoch."""
        return self.images or IMAGENET_TRAIN_IMAGES


@dataclass(frozen=True)
class Advice:
    """The answer.

    Attributes
    ----------
    question
        What was asked.
    candidates
        All that were looked at.
    eligible
        Those that may be advised: without a limit on accuracy only those that reach the best known
        accuracy within a percentage point, if any of them can keep the limits.
    front
        Those that no other one beats in both time and node-hours, the fastest first.
    advised
        The one that is advised: with a deadline the one of the fewest node-hours, else the fastest
        one, among the eligible ones that surely keep all limits, within the measured numbers of
        ranks if there is one; if none keeps them, the one whose bands go least beyond them.
    sure
        Whether its bands keep all limits.
    alike
        Others on as many ranks whose band of time holds the advised one's value.
    open
        Those that would be better still, if what is open of their limits turned out well.
    next_run
        The single extra run that would tell most.
    accuracy
        What is known of it.
    left_out
        What is no candidate, and why.
    """

    question: Question
    candidates: Sequence[Candidate]
    eligible: Sequence[Candidate]
    front: Sequence[Candidate]
    advised: Candidate
    sure: bool
    alike: Sequence[Candidate]
    open: Sequence[Candidate]
    next_run: NextRun | None
    accuracy: Accuracy | None
    left_out: Sequence[str]


def advise(question: Question, tree: Tree, directory: Path = PAPER) -> Advice:
    """Return advice from the records of a tree and the paper's numbers.

    Raises
    ------
    DataError
        If there is no evidence of what is asked, or nothing keeps the limits.
    RecordError
        If a record cannot be read.
    SpecError
        If the network's gradients are not known.
    """
    records = own_records.evidence(tree, question.model, question.dataset)
    stated, series, published_of = [], [], []
    if question.dataset == "imagenet":
        stated = paper.evidence(question.model, directory)
        series = published.evidence(question.model, question.as_if)
        published_of = published.machines(question.model)
    known = [*records.evidence, *stated, *series]
    evidence = _chosen(question, known, published_of, records.refused)
    accuracy = of_records(tree, question.model, question.dataset, question.epochs) or of_paper(
        question.model, question.dataset, question.epochs, directory
    )
    sizes = question.place.sizes(question.most_gpus)
    found = [
        candidate
        for one in evidence
        for candidate in candidates(
            one,
            sizes,
            question.place.gpus_per_node or one.gpus_per_node,
            question.epoch_images,
            question.epochs,
            accuracy,
        )
    ]
    told = [paper.left_out(directory)] if any(one in stated for one in evidence) else []
    left_out = [*(f"records of {said}" for said in records.refused), *told]
    return _decided(question, found, accuracy, left_out)


def _chosen(
    question: Question,
    everywhere: Sequence[Evidence],
    published_of: Sequence[str],
    refused: Sequence[str],
) -> list[Evidence]:
    place, as_if = question.place, question.as_if
    mine = [one for one in everywhere if (one.machine == as_if if as_if else place.owns(one))]
    if mine:
        return mine
    asked = f"{question.model} on {question.dataset} on {as_if or place.title}"
    others = sorted({one.machine for one in everywhere})
    others += [one for one in published_of if one not in others]
    there = f"there is some of {', '.join(map(repr, others))}" if others else "nor elsewhere"
    why = f" (records that cannot be used: {'; '.join(refused)})" if refused else ""
    study, how = (
        ("juwels_booster.yaml with few nodes", f"submit FILE --site {place.name}")
        if place.name
        else ("laptop.yaml", "run FILE")
    )
    other = f"; or, if your machine is like one of these, `--as-if {others[0]!r}`" if others else ""
    raise DataError(
        f"no evidence of {asked}; {there}{why}. Measure some first, at two numbers of workers, by "
        f"a copy of studies/{study}, that network and that data set: `ddl study {how}`, then "
        f"`ddl advise --results results`{other}"
    )


def _decided(
    question: Question,
    found: Sequence[Candidate],
    accuracy: Accuracy | None,
    left_out: Sequence[str],
) -> Advice:
    limits = question.limits
    _judged(found, limits)
    able = [one for one in found if one.worst(limits) != "broken"]
    if not able:
        raise DataError(_infeasible(found, limits))
    if limits.accuracy is None:
        able = _most_accurate(able, found)
    safe = [one for one in able if one.worst(limits) == "kept"]

    def better(one: Candidate) -> tuple[bool, float, float]:
        pair = one.node_hours.value, one.deadline.value
        # What is measured wins over what is extrapolated, whose middle may be anything.
        return (one.beyond > 1, *(pair if limits.deadline is not None else pair[::-1]))

    advised = min(safe, key=better) if safe else min(able, key=lambda one: one.excess(limits))
    same = [one for one in able if one.ranks == advised.ranks and one is not advised]
    value = advised.deadline.value
    return Advice(
        question,
        found,
        able,
        front(found),
        advised,
        bool(safe),
        [one for one in same if one.deadline.low <= value <= one.deadline.high],
        [one for one in able if one not in safe and better(one) < better(advised)],
        next_run(advised, question.place.sizes(question.most_gpus), question.epoch_images),
        accuracy,
        left_out,
    )


def _most_accurate(able: list[Candidate], found: Sequence[Candidate]) -> list[Candidate]:
    """Return those not known to lose accuracy; if all do, those that lose least."""
    for those in (found, able):
        best = max((one.accuracy.value for one in those if one.accuracy), default=0.0)
        kept = [one for one in able if not one.accuracy or one.accuracy.value >= best - MARGIN]
        if kept:
            return kept
    return able


def _judged(found: Sequence[Candidate], limits: Limits) -> None:
    """Refuse to judge by what nothing is known of."""
    if not found:
        raise DataError(
            "nothing to choose from: an epoch has fewer images than one step of the fewest "
            "workers, or most_gpus is less than a node; name more of them"
        )
    remedies = {
        "energy": "measure with ranks whose energy is counted (docs/method.md, Energy)",
        "accuracy": "train to the end once, e.g. `ddl study run accuracy_paper`",
    }
    for name, remedy in remedies.items():
        known = any(getattr(one, name) is not None for one in found)
        if name in limits.set() and not known:
            raise DataError(
                f"no evidence of {name} for this network, data set and number of epochs, so that "
                f"{name}={limits.set()[name]:g} cannot be judged; {remedy}, or leave it out"
            )


_SPARE = 1.005  # so that a limit that is told with three digits is kept
UNITS = {"deadline": "h", "node_hours": "node-hours", "energy": "kWh", "accuracy": "%"}


def _infeasible(found: Sequence[Candidate], limits: Limits) -> str:
    """Say what the limits are, and what each would have to be for the others to stay."""
    told = ", ".join(f"{name}={value:g}" for name, value in limits.set().items())
    lines = []
    for name, (one, others) in nearest(found, limits).items():
        span = getattr(one, name)
        wanted = span.low / _SPARE if name == "accuracy" else span.high * _SPARE
        rest = f", the others {others}" if len(limits.set()) > 1 else ""
        arm = f"{one.evidence.strategy}, {one.evidence.loader}, {one.ranks} workers"
        lines.append(f"{name}={wanted:.3g} would do{rest}: {span} {UNITS[name]} ({arm})")
    return f"nothing keeps {told}; {'; '.join(lines)}"
