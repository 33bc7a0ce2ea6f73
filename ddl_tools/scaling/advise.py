"""Choose a configuration and, unless it is given, a number of ranks that meet some limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from ddl_core.config import IMAGENET_TRAIN_IMAGES
from ddl_core.errors import DataError, SpecError
from ddl_core.registry import check_name, title
from ddl_tools.names import phrase, plural
from ddl_tools.records.paths import Tree
from ddl_tools.scaling import measured, paper
from ddl_tools.scaling.accuracy import MARGIN, Accuracy, of_paper, of_records, paper_loss
from ddl_tools.scaling.candidate import MAX_EXTRAPOLATION, Candidate, Machine, positive
from ddl_tools.scaling.options import Limits, Option, nearest, options

SAME_COST = 0.05  # costs this close are equivalent (docs/reference/glossary.md)
UNITS = {"deadline": "h", "node_hours": "node-hours", "accuracy": "%"}


@dataclass(frozen=True)
class Request:
    """A training and its limits. ``images`` of an epoch; None: ImageNet's.

    With other ``images`` than ImageNet's, ``dataset="imagenet"`` stands for images as large as its.
    ``gpus``: advice for this number of ranks alone, for which there may be no limit.
    """

    machine: Machine
    model: str
    limits: Limits
    dataset: str = "imagenet"
    images: int | None = None
    epochs: int = paper.EPOCHS
    max_gpus: int | None = None
    gpus: int | None = None

    def __post_init__(self) -> None:
        check_name("model", self.model)
        positive(epochs=self.epochs)
        for name in ("images", "max_gpus", "gpus"):
            if (value := getattr(self, name)) is not None:
                positive(**{name: value})
        if self.images is None and self.dataset != "imagenet":
            raise SpecError(
                f"dataset={self.dataset!r}: the number of images is known of imagenet alone; set "
                "images"
            )
        if self.gpus and self.max_gpus:
            raise SpecError(
                f"gpus={self.gpus} and max_gpus={self.max_gpus} exclude each other; choose one"
            )
        if not self.gpus and not self.limits.set():
            raise SpecError(
                "no limit; give --deadline, --node-hours, --accuracy or --gpus (in Python "
                "deadline, node_hours, accuracy or gpus)"
            )

    @property
    def epoch_images(self) -> int:
        """Images of an epoch."""
        return self.images or IMAGENET_TRAIN_IMAGES

    @property
    def title(self) -> str:
        """Network, data set, epochs and images in words."""
        model, images = title("model", self.model), plural(self.epoch_images, "image", ",")
        epochs = plural(self.epochs, "epoch")
        if self.dataset == "imagenet" and self.epoch_images != IMAGENET_TRAIN_IMAGES:
            return f"{model}, {epochs} of {images} as large as ImageNet's"
        data = phrase("dataset", self.dataset)
        return f"{model} on {data}, {epochs} of {images}"

    @property
    def sizes(self) -> list[int]:
        """Numbers of ranks to look at, whole nodes of a site; may be none."""
        if self.gpus is None:
            return self.machine.sizes(self.max_gpus)
        per_node = max(self.machine.ranks_per_node, 1) if self.machine.name else 1
        return [] if self.gpus % per_node else [self.gpus]


@dataclass(frozen=True)
class Advice:
    """An answer: the advised option, and whether its whole range meets all limits (`certain`).

    ``equal`` are other options on as many ranks whose range of time contains the advised time.
    ``loss_from`` is the batch from which on the paper lost accuracy.
    """

    request: Request
    options: Sequence[Option]
    advised: Option
    certain: bool
    equal: Sequence[Option]
    accuracy: Accuracy | None
    loss_from: int


def advise(request: Request, tree: Tree) -> Advice:
    """Return advice from the records of a tree and the paper's statements.

    `DataError` if nothing is known of what is asked, or no option meets the limits.
    """
    machine, every = request.machine, measured.trainings(tree)
    runs, known = _known(request.model, request.dataset, every, tree)
    usable = [one for one in known if machine.owns(one)]
    if not usable:
        _, of_imagenet = _known(request.model, "imagenet", every, tree)
        raise DataError(_nothing_known(request, known, of_imagenet))
    accuracy = of_records(runs, request.epochs)
    if accuracy is None and request.epoch_images == IMAGENET_TRAIN_IMAGES:
        accuracy = of_paper(request.model, request.dataset, request.epochs)
    training = request.epoch_images, request.epochs
    found = [
        option
        for one in usable
        for option in options(one, request.sizes, machine.ranks_per_node, *training, accuracy)
    ]
    _check(request, found, usable)
    return _decide(request, found, accuracy)


def _known(
    model: str, dataset: str, every: Sequence[measured.Measured], tree: Tree
) -> tuple[Sequence[measured.Measured], Sequence[Candidate]]:
    """Return those of `every` run of a network on a data set, and what they and the paper say."""
    runs = measured.of_network(every, model, dataset)
    stated = paper.candidates(model) if dataset == "imagenet" else []
    return runs, [*measured.candidates(runs, tree), *stated]


def _nothing_known(
    request: Request, known: Sequence[Candidate], of_imagenet: Sequence[Candidate]
) -> str:
    machine, others = request.machine, sorted({one.machine for one in known})
    study, how = (
        ("juwels_booster.yaml with few nodes", f"submit FILE --site {machine.name}")
        if machine.name
        else ("laptop.yaml", "run FILE")
    )
    elsewhere = f"known: {', '.join(map(repr, others))}" if others else "nor on any other machine"
    return (
        f"no measurement of {request.model} on {request.dataset} on {machine.title}; {elsewhere}. "
        f"Measure first, on at least two numbers of ranks, by a copy of studies/{study}, that "
        f"network and that data set: `ddl study {how}`, then `ddl advise --results results`"
        f"{_with_rates_of_imagenet(request, of_imagenet)}"
    )


def _with_rates_of_imagenet(request: Request, known: Sequence[Candidate]) -> str:
    """Return how to ask for an answer by ImageNet's rates; empty if these are unknown as well."""
    if request.dataset == "imagenet" or not any(map(request.machine.owns, known)):
        return ""
    return (
        ". Or leave out --dataset (in Python dataset='imagenet'): the answer is then for "
        f"{request.epoch_images:,} images as large as ImageNet's"
    )


def _decide(request: Request, found: Sequence[Option], accuracy: Accuracy | None) -> Advice:
    limits = request.limits
    able = [one for one in found if one.worst(limits) != "violated"]
    if not able:
        raise DataError(_infeasible(found, limits))
    if limits.accuracy is None:
        able = _most_accurate(able, found)
    safe = [one for one in able if one.worst(limits) == "met"]

    loss_from = paper_loss()
    if safe:
        advised = _best(safe, limits, loss_from)
    else:
        advised = min(able, key=lambda one: one.violation(limits))
    same = [one for one in able if one.ranks == advised.ranks and one is not advised]
    value = advised.deadline.value
    equal = [one for one in same if one.deadline.low <= value <= one.deadline.high]
    return Advice(request, found, advised, bool(safe), equal, accuracy, loss_from)


def _best(pool: Sequence[Option], limits: Limits, loss_from: int) -> Option:
    """Return the best of some options, of equal ones the first.

    Known sizes come before extrapolated ones. With a deadline, the smallest batch of those with
    the least cost is the best: a larger one may lose accuracy. Without a deadline, it is the
    fastest that does not risk accuracy.
    """

    def rounded(one: Option) -> tuple[float, float]:
        return round(one.node_hours.value, 9), round(one.deadline.value, 9)

    known = [one for one in pool if one.extrapolation == 1] or pool
    if limits.deadline is None:
        return min(known, key=lambda one: (risks_accuracy(one, loss_from), *rounded(one)[::-1]))
    most = (1 + SAME_COST) * min(one.node_hours.value for one in known)
    cheap = [one for one in known if one.node_hours.value <= most]
    return min(cheap, key=lambda one: (one.global_batch_size, *rounded(one)))


def risks_accuracy(one: Option, loss_from: int) -> bool:
    """Return whether accuracy is unknown at a batch with which the paper lost some."""
    return one.accuracy is None and one.global_batch_size >= loss_from


def _most_accurate(able: list[Option], found: Sequence[Option]) -> list[Option]:
    """Return the options without a loss of accuracy; if all lose, those that lose least."""
    for those in (found, able):
        best = max((one.accuracy.value for one in those if one.accuracy), default=0.0)
        kept = [one for one in able if not one.accuracy or one.accuracy.value >= best - MARGIN]
        if kept:
            return kept
    return able


def _check(request: Request, found: Sequence[Option], usable: Sequence[Candidate]) -> None:
    machine, limits = request.machine, request.limits
    if not request.sizes:
        name = "gpus" if request.gpus else "max_gpus"
        multiple = "a multiple of" if request.gpus else "at least"
        raise DataError(
            f"{name}={getattr(request, name)}: a node of {machine.name} has "
            f"{plural(machine.ranks_per_node, 'GPU')}, and a job gets whole nodes; allow "
            f"{multiple} {machine.ranks_per_node}"
        )
    if not found:
        least, most = min(one.sizes[0] for one in usable), max(one.max_ranks for one in usable)
        raise DataError(
            f"no option on {', '.join(map(str, request.sizes))} ranks; options exist for "
            f"{least} to {most}, at most {MAX_EXTRAPOLATION} times the largest known number, and "
            "for steps with no more images than an epoch. Change gpus, max_gpus or images, or "
            "measure more sizes"
        )
    if limits.accuracy is not None and not any(one.accuracy for one in found):
        raise DataError(
            "no measurement of accuracy for this network, these images and number of epochs, so "
            f"that accuracy={limits.accuracy:g} cannot be judged; train to the end once, e.g. `ddl "
            "study run accuracy_paper`, or leave it out"
        )


_SPARE = 1.005  # so that a limit that is printed with three digits is met


def _infeasible(found: Sequence[Option], limits: Limits) -> str:
    """Return what each limit would have to be for an option to meet it."""
    asked = ", ".join(f"{name}={value:g}" for name, value in limits.set().items())
    lines = []
    for name, (one, others) in nearest(found, limits).items():
        span = getattr(one, name)
        wanted = span.low / _SPARE if name == "accuracy" else span.high * _SPARE
        rest = f", the other limits {others}" if len(limits.set()) > 1 else ""
        by = f"{one.candidate.name}, {plural(one.ranks, 'rank')}"
        lines.append(f"{name}={wanted:.3g} would do{rest}: {span} {UNITS[name]} ({by})")
    return f"no option meets {asked}; {'; '.join(lines)}"
