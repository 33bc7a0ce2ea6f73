"""Comparisons in the records that a statement of a paper is about, with their words."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ddl_tools.analysis import estimates
from ddl_tools.analysis.estimates import Estimate
from ddl_tools.analysis.evidence import ACCURACIES, Configuration, Evidence, reads_as_stated
from ddl_tools.analysis.interleaving import over_blocks, relative
from ddl_tools.analysis.plot import style
from ddl_tools.labels import called, plural
from ddl_tools.scaling.paper import covers

LAST_SMALL_WORLD = 64  # GPUs: a batch of 4,096, before the first clear drop of accuracy (A01, A02)
# Columns that may differ besides the compared one.
_FREE = {"loader": {"data_format"}, "framework": {"strategy"}, "global_batch_size": {"shape"}}
_NAMED = ("framework", "strategy", "loader", "model", "schedule")
SYMBOLS = {"runtime": "T", "speedup": "speed-up", "throughput_scaling": "speed-up",
           "parallel_efficiency": "E"}  # fmt: skip

Part = Any
"""A row of claims.csv with "" in empty cells: one comparison of a statement."""


@dataclass(frozen=True)
class Comparison:
    """One comparison in the records: of two configurations, or of one with a stated number."""

    part: Part
    estimate: Estimate
    sizes: frozenset[int]
    place: str = ""
    text: str = ""


def comparisons(part: Part, evidence: dict[str, Evidence], strict: bool) -> Iterator[Comparison]:
    """Return what is known of a part: under the paper's conditions (strict), or anywhere."""
    if own := evidence.get(part.quantity):
        fitting = [one for one in own.found if _fits(one, part, strict)]
        yield from (_compared if part.compared else _reached)(part, own, fitting, strict)


def _fits(one: Configuration, part: Part, strict: bool) -> bool:
    """Say whether a part speaks of a configuration.

    Under other conditions, hardware, data, batch, format and (unless compared) the network may be
    others, and the sizes too, unless a number is stated of them. Where loaders or networks are
    compared, one process without a framework counts too. A statement on small batches is looked
    for at a study's smallest, one on large batches at its largest.
    """
    about = one.about
    stated = {name: getattr(part, name) for name in _NAMED if getattr(part, name)}
    sized = not part.world_size_max or part.compared == "world_size"
    sized = sized or part.world_size_min <= one.gpus <= part.world_size_max
    if not strict:
        if part.compared == "schedule":
            end = "smallest" if part.world_size_max <= LAST_SMALL_WORLD else "largest"
            return bool(about["global_batch_size"] == about[end])
        stated.pop("model", None)
        if part.compared in ("loader", "model") and about["strategy"] == "single":
            stated.pop("strategy", None)
        # A stated accuracy is one of ImageNet, and means nothing for another task.
        sized = bool(part.compared) or (sized and part.quantity not in ACCURACIES)
    named = all(covers(name, str(about[column])) for column, name in stated.items())
    return named and sized and (one.on_terms or not strict)


def _pairs(
    part: Part, evidence: Evidence, fitting: list[Configuration], strict: bool
) -> Iterator[tuple[Configuration, Configuration]]:
    """Return the pairs that differ in what is compared alone."""
    lefts = [one for one in fitting if _is_side(one, part, part.left, "smallest", strict)]
    rights = [one for one in fitting if _is_side(one, part, part.right, "largest", strict)]
    free = {part.compared} | _FREE.get(part.compared, set())
    for one in lefts:
        for other in (other for other in evidence.same(one, free) if other in rights):
            formats = {pair.about["data_format"] for pair in (one, other)}
            stated = all(reads_as_stated(pair.about) for pair in (one, other))
            if part.compared != "loader" or len(formats) == 1 or stated:
                yield one, other


def _is_side(one: Configuration, part: Part, name: str, end: str, strict: bool) -> bool:
    about = one.about
    if part.compared == "framework":  # "torch ddp", or a library, however it is distributed
        library, _, strategy = name.partition(" ")
        own = about["strategy"]
        return about["framework"] == library and (own == strategy if strategy else own != "single")
    if part.compared == "global_batch_size" and not strict:
        return bool(about["global_batch_size"] == about[end])
    return covers(name, str(about[part.compared]))


def _compared(
    part: Part, evidence: Evidence, fitting: list[Configuration], strict: bool
) -> Iterator[Comparison]:
    """Compare pairs: their values, or these relative to each one's baseline."""
    for one, other in _pairs(part, evidence, fitting, strict):
        estimate, names = evidence.ratio(one, other), _names(part, one, other)
        place, sizes = _place(one, part), {one.gpus, other.gpus}
        if part.quantity in ACCURACIES:
            lost = one.lost + other.lost
            text = f"{names}{f' ({lost} lost)' if lost else ''}: {points(estimate)} points"
        elif part.quantity != "parallel_efficiency":
            text = f"{names} {interval(estimate)}"
        else:
            bases = [base for side in (one, other) if (base := evidence.baseline(side, strict))]
            if len(bases) < 2 or bases[0].gpus != bases[1].gpus:
                continue
            paired = relative(
                *(
                    relative(side.sample.windows, base.sample.windows)
                    for side, base in zip((one, other), bases, strict=True)
                )
            )
            estimate = over_blocks(paired) if paired else (
                estimates.product(estimate, evidence.ratio(bases[1], bases[0])))  # fmt: skip
            sizes.add(bases[0].gpus)
            place += f", base {bases[0].gpus}"
            text = f"E of {names} {interval(estimate)}{_against_single(evidence, one, other)}"
        yield Comparison(part, estimate, frozenset(sizes), place, text)


def _against_single(evidence: Evidence, *pair: Configuration) -> str:
    """Return throughput per rank over that of one process: a slow baseline flatters E."""
    values = []
    for side in pair:
        same = evidence.same(side, {"strategy", "world_size"})
        same = [one for one in same if (one.about["strategy"], one.gpus) == ("single", 1)]
        if not same:
            return ""
        values.append(f"{evidence.ratio(side, same[0]).ratio / side.gpus:.2f}")
    return f", against one process without a framework {' and '.join(values)}"


def _reached(
    part: Part, evidence: Evidence, fitting: list[Configuration], strict: bool
) -> Iterator[Comparison]:
    """Compare the quantity itself with the number that is stated of it."""
    for one in fitting:
        value, base = estimates.middle(one.values), None
        place, stated = _place(one, part), float(part.stated or 1)
        if part.quantity in ACCURACIES:
            text, stated = f"V of {_name(one, 'schedule')} {points(value)} points", math.exp(stated)
        else:
            if part.quantity != "runtime":
                if not (base := evidence.baseline(one, strict)):
                    continue
                place += f", base {base.gpus}"
                # A speed-up is of runtimes.
                pair = (base, one) if part.quantity == "speedup" else (one, base)
                ideal = one.gpus / base.gpus if part.quantity == "parallel_efficiency" else 1.0
                value = estimates.scaled(evidence.ratio(*pair), 1 / ideal)
            name = f"{_name(one, 'framework')} ({_name(one, 'loader')})"
            text = f"{SYMBOLS[part.quantity]} of {name} {interval(value)}"
        sizes = frozenset({one.gpus, base.gpus} if base else {one.gpus})
        yield Comparison(part, estimates.scaled(value, 1 / stated), sizes, place, text)


# --- in words ---


def interval(value: Estimate) -> str:
    """Return e.g. "1.25 [1.16, 1.35]"; with one start there is no interval."""
    places = 2 if value.ratio < 100 else 0  # ratios; seconds
    middle, low, high = (f"{one:.{places}f}" for one in (value.ratio, value.low, value.high))
    return f"{middle} [{low}, {high}]" if value.n > 1 else f"{middle} (one start)"


def points(value: Estimate) -> str:
    """Return e.g. "+1.8 [+0.4, +3.2]" percentage points; one repeat has no interval."""
    logs = value.log_mean, math.log(value.low), math.log(value.high)
    middle, low, high = (f"{100 * one:+.1f}" for one in logs)
    return f"{middle} [{low}, {high}]" if value.n > 1 else f"{middle} (single run)"


def _place(one: Configuration, part: Part) -> str:
    """Return where one was measured, e.g. "laptop, 2 ranks, 2 CPU cores, ResNet50"."""
    about = one.about
    model = [] if part.compared == "model" else [style.model_name(about["model"])]
    if "alike" in about:  # of a study of accuracy
        batch = [f"batch {about['global_batch_size']:,}"]
        batch = batch if part.compared != "global_batch_size" else []
        return ", ".join([about["study"], style.dataset_name(about["dataset"]), *model, *batch])
    ranks = plural(one.gpus, "rank")
    machine = f"{about['cpu_cores']} CPU cores" if about["on_cpu"] else str(about["hardware"])
    single = ["one process"] if about["strategy"] == "single" else []
    return ", ".join([about["run_in"], ranks, machine, *model, *single])


def _names(part: Part, one: Configuration, other: Configuration) -> str:
    between = " - " if part.quantity in ACCURACIES else " / "
    names = between.join(_name(side, part.compared) for side in (one, other))
    if part.compared == "world_size":
        return f"{names} ranks"
    if part.compared == "global_batch_size":
        return f"{_name(one, 'schedule')}: batch {names}"
    return f"{names} ({_name(one, 'loader')})" if part.compared in ("strategy", "model") else names


def _name(one: Configuration, column: str) -> str:
    about = one.about
    if column == "loader":
        return style.loader_name(about["loader"], about["data_format"], formats=True)
    if column == "framework" and about["framework"] != "torch":
        return called(about["framework"], about["strategy"])
    column = "strategy" if column == "framework" else column
    known = column in ("strategy", "model", "schedule")
    return str(getattr(style, f"{column}_name")(about[column])) if known else f"{about[column]:,}"
