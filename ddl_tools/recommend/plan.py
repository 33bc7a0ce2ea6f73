"""Decide what a search measures next: parts first, then what promises most, as a whole.

A training alone (synthetic images) and a loader alone are the *parts* of a configuration. The
slower of the two limits what both reach together. This forecast is up to 19 % too high, so it ranks
configurations and does not decide: those close to the best one are started as a whole, interleaved
with the default. ``benchmarks/recommend_worlds.py`` searches worlds in which the truth is known.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, SpecError
from ddl_core.registry import owner
from ddl_tools.analysis import estimates
from ddl_tools.analysis.estimates import MARGIN
from ddl_tools.estimate import Estimate
from ddl_tools.names import plural

Level = Mapping[str, Any]
"""Fields of `RunSpec` that a change sets."""

WORTH = 1.25  # a forecast within this factor of the best one is worth a start
STARTS = 3  # of a configuration: an interval needs so many
MOST_STARTS = 10  # of a configuration in one call
RIVALS = 8  # configurations beside the default in a block at most
ENOUGH = 4  # in the first one, if there is time for the starts of a proof
FINALISTS = 2  # in later blocks
CLOSE = 1.10  # a configuration within this factor of the leader gets another start
RESERVE = 0.5  # share of the time that parts leave for whole configurations at most
FINISH_S = 15.0  # of the time, for figure, page and answer
AGAIN = 0.2  # share of the time that measuring all parts again may take
GAIN = 1.05  # of a doubled batch, for another doubling
DISTURBED = 0.15  # share of the cores that other programs may take
PART_EPOCHS = 3  # a cold one, and two that count
RECOMPUTATION = "activation_checkpointing"
NCHW = {"channels_last": False}
# A configuration has these from its loader, and all others from its training.
LOADER_FIELDS = ("loader", "dali_decode", "data_format", "train_images", "uncached")


@dataclass(frozen=True)
class Space:
    """What can be tried, and what is known without a measurement.

    `default` is what PyTorch does by itself. `settings` change the arithmetic of the training and
    `ranks` their number, at the same global batch; `larger` are batches of a rank. `savings` need
    less memory, the cheapest first: `fitting` tries them. `images` are all training images of the
    data; `missing` names what cannot be tried, and why. `hardware` is the part of `machine` that
    does not change. `given` are commands of the user's: they have no parts, so each is started.
    """

    default: RunSpec
    settings: Sequence[Level] = ()
    ranks: Sequence[Level] = ()
    strategies: Sequence[str] = ()
    savings: Sequence[Level] = ()
    loaders: Sequence[Level] = ()
    larger: Sequence[int] = ()
    compiles: bool = False
    images: int = 1
    machine: str = ""
    hardware: str = ""
    missing: Sequence[str] = ()
    given: Sequence[RunSpec] = ()


@dataclass
class Known:
    """What was measured, by configuration (`repeat` 0). Rates are images per second.

    `rates` are those of parts; of a part that was measured twice, the higher one. `starts` has the
    rates of whole configurations by block: those of one block were interleaved. `failed` has
    reasons, and `took` the seconds of a part, or of the epochs of a start.
    """

    rates: dict[RunSpec, float] = field(default_factory=dict)
    starts: dict[RunSpec, dict[str, float]] = field(default_factory=dict)
    failed: dict[RunSpec, str] = field(default_factory=dict)
    took: dict[RunSpec, float] = field(default_factory=dict)

    def ratio(self, one: RunSpec, other: RunSpec) -> Estimate:
        """Return the ratio of two whole configurations over the blocks that both are in."""
        above, below = self.starts.get(one, {}), self.starts.get(other, {})
        return estimates.middle([above[block] / below[block] for block in above if block in below])

    def fastest(self, parts: Iterable[RunSpec]) -> RunSpec | None:
        """Return the part with the highest rate; None if none has any."""
        known = [spec for spec in parts if spec in self.rates]
        return max(known, key=self.rates.__getitem__, default=None)


class Bench(Protocol):
    """What measures for a search: ranks of this machine, or a simulation."""

    known: Known

    @property
    def left_s(self) -> float:
        """Seconds that are left for measuring."""

    def cost_s(self, spec: RunSpec) -> float:
        """Return the seconds of a part, or of the epochs of a start, as far as is known now."""

    def block_s(self, block: Sequence[RunSpec]) -> float:
        """Return the seconds that a block takes: its starts and their epochs."""

    def measure_parts(self, parts: Sequence[RunSpec]) -> None:
        """Measure parts one after the other: `known` has their rates, or why they failed.

        What was measured already, also as a repeat, is not measured anew.
        """

    def measure_block(self, block: Sequence[RunSpec]) -> None:
        """Start configurations, interleaved: `known` has their rates, or why they failed."""


def search(space: Space, bench: Bench) -> None:
    """Measure parts, then whole configurations, until the time is over or all have enough starts.

    `LaunchError` if the default cannot be trained: everything is compared with it. `SpecError` if
    the time is too short for an answer.
    """
    total_s = bench.left_s
    measure_parts(space, bench, total_s)
    # A second time where that is cheap: other programs may have been at work the first time.
    if sum(map(bench.cost_s, bench.known.rates)) <= AGAIN * total_s:
        bench.measure_parts([spec.model_copy(update={"repeat": 1}) for spec in bench.known.rates])
        measure_parts(space, bench, total_s)
    if not (space.given or forecasts(space, bench.known)) and (failed := bench.known.failed):
        raise LaunchError(f"nothing can be trained here: {next(iter(failed.values()))}")
    for _ in range(MOST_STARTS):
        why = bench.known.failed.get(space.default)
        if why and not bench.known.starts.get(space.default):
            raise LaunchError(f"the default cannot run, and all else is compared with it: {why}")
        block = next_block(space, bench)
        if not block:
            break
        bench.measure_block(block)
    if not any(bench.known.starts.values()):
        missing_s = sum(map(bench.cost_s, next_parts(space, bench.known)))
        missing_s += bench.block_s([space.default, space.default])
        minutes = plural(math.ceil((missing_s + FINISH_S) / 60), "more minute")
        raise SpecError(
            "the time is too short to compare two configurations; the same command goes on, and "
            f"needs {minutes}"
        )


def fitting(space: Space, trains: Callable[[RunSpec], bool]) -> Space | None:
    """Return the space with the first default that trains: as it is, or with one of its savings.

    Its `savings` are those that may be faster: further ones that recompute as little. None if
    nothing trains.
    """
    for number, level in enumerate([{}, *space.savings]):
        for default in changed(space.default, level):
            if trains(default):
                left = space.savings[number:] if number else ()
                recomputes = default.activation_checkpointing
                alike = [one for one in left if recomputes == bool(one.get(RECOMPUTATION))]
                return replace(space, default=default, savings=alike)
    return None


def changed(spec: RunSpec, *levels: Level) -> list[RunSpec]:
    """Return a configuration with each of some changes, without those that cannot be."""
    found = []
    for level in levels:
        try:
            found.append(_with(spec, level))
        except SpecError:
            continue
    return found


def _with(spec: RunSpec, level: Level) -> RunSpec:
    """Return a configuration with a change; another strategy leaves the settings of this one."""
    fields = spec.model_dump() | dict(level)
    owners = None, fields["strategy"]
    return RunSpec.parse({name: one for name, one in fields.items() if owner(name) in owners})


def measure_parts(space: Space, bench: Bench, total_s: float) -> None:
    """Measure what may matter, as long as enough time is left for starts.

    Larger batches are another question than that of the fastest at equal batch: they leave all the
    time that a proof needs.
    """
    while parts := next_parts(space, bench.known):
        reserve_s = proof_s(space, bench)
        if parts[0].global_batch_size <= space.default.global_batch_size:
            reserve_s = min(reserve_s, RESERVE * total_s)
        if bench.cost_s(parts[0]) > bench.left_s - reserve_s:
            return
        bench.measure_parts(parts[:1])


def proof_s(space: Space, bench: Bench) -> float:
    """Return the seconds of the starts of a proof: those of a first block, then of finalists."""
    many = rivals(space, bench.known)[:ENOUGH] or [space.default] * ENOUGH
    blocks = [many, *(STARTS - 1) * [many[:FINALISTS]]]
    return sum(bench.block_s([space.default, *block]) for block in blocks)


def refused(space: Space, known: Known) -> dict[str, str]:
    """Return strategies that cannot train with the fastest arithmetic, and why."""
    best, reasons = known.fastest(arithmetics(space)), dict[str, str]()
    if best is None:
        return reasons
    for name in space.strategies:
        try:
            _with(best, {"strategy": name})
        except SpecError as error:
            reasons[name] = str(error)
    return reasons


def arithmetics(space: Space) -> list[RunSpec]:
    """Return the trainings alone that differ in nothing but their arithmetic, the default first."""
    default = training_alone(space.default, space)
    others = changed(default, *space.settings)
    # What shards its weights may train as NCHW only.
    others = others or changed(default, *({**one, **NCHW} for one in space.settings))
    return [default, *(one for one in others if one != default)]


def training_alone(spec: RunSpec, space: Space) -> RunSpec:
    """Return the training of a configuration, on images that cost nothing."""
    images = spec.train_images or space.images
    own = {"loader": "synthetic", "data_format": "folder", "train_images": images}
    own |= {"loader_workers": space.default.loader_workers, "epochs": PART_EPOCHS}
    own |= {"uncached": False}
    return spec.model_copy(update=own)


def loading_alone(training: RunSpec, space: Space, level: Level) -> RunSpec:
    """Return a loader that fetches the images of a training, in place of synthetic ones."""
    own = {name: getattr(space.default, name) for name in LOADER_FIELDS}
    return training.model_copy(update={**own, **level, "work": "load"})


def whole(training: RunSpec, loading: RunSpec, space: Space) -> RunSpec:
    """Return the configuration of two parts; its loader has as many processes on the machine."""
    own = {name: getattr(loading, name) for name in LOADER_FIELDS}
    own["epochs"] = space.default.epochs
    processes = loading.loader_workers * loading.gpus_per_node
    own["loader_workers"] = max(1, processes // training.gpus_per_node)
    return training.model_copy(update=own)


def is_part(spec: RunSpec) -> bool:
    """Say whether a run is a part of a configuration."""
    return spec.work == "load" or spec.loader == "synthetic"


def next_parts(space: Space, known: Known) -> list[RunSpec]:
    """Return the parts to measure next; nothing if all that may matter are known."""
    if space.given:
        return []
    for group in parts_in_order(space, known):
        left = [spec for spec in group if spec not in known.rates and spec not in known.failed]
        if left:
            return left
    return []


def parts_in_order(space: Space, known: Known) -> Iterator[list[RunSpec]]:
    """Yield groups of parts, those that matter most first; a group follows from those before it."""
    trained = arithmetics(space)
    yield trained
    best = known.fastest(trained)
    if best is None:
        return
    loaded = [loading_alone(best, space, level) for level in space.loaders]
    yield loaded
    strategies = [{"strategy": name} for name in space.strategies]
    others = changed(best, *strategies, *space.savings, *space.ranks)
    yield others
    rate = known.rates[best]
    other = known.fastest(others)
    if other and known.rates[other] > GAIN * rate:  # else it is PyTorch's own strategy
        best, rate = other, known.rates[other]
    # More processes help where a loader limits, if with twice as many it may be the best one.
    first = known.fastest(loaded)
    least = min(rate, known.rates[first]) / (2 * WORTH) if first else 0.0
    slow = [one for one in loaded if least <= known.rates.get(one, 0.0) < WORTH * rate]
    slow.sort(key=lambda one: -known.rates.get(one, 0.0))
    more = [one.model_copy(update={"loader_workers": 2 * one.loader_workers}) for one in slow[:2]]
    yield more
    loader = known.fastest([*loaded, *more])
    loading = known.rates[loader] if loader else 0.0
    # A faster training is of use only where no loader limits it.
    if space.compiles and loading > rate:
        yield changed(best, {"compile": True})
    for larger in changed(best, *({"local_batch_size": batch} for batch in space.larger)):
        if loading <= rate:
            break
        yield [larger]
        if known.rates.get(larger, 0.0) < GAIN * rate:
            break
        rate = known.rates[larger]


class Forecast(NamedTuple):
    """What two parts promise, images per second.

    `most` is the slower of the two rates: both work at once, and neither is in the way of the
    other. `least` is what they reach one after the other, as on cores that they share.
    """

    most: float
    least: float
    training: RunSpec
    loading: RunSpec


def forecasts(space: Space, known: Known) -> dict[RunSpec, Forecast]:
    """Return what each configuration of two known parts promises, at any batch."""
    found: dict[RunSpec, Forecast] = {}
    loads = [spec for spec in known.rates if spec.work == "load"]
    for training, rate in known.rates.items():
        for loading in loads if training.work == "train" else ():
            spec, other = whole(training, loading, space), known.rates[loading]
            one = Forecast(min(rate, other), 1 / (1 / rate + 1 / other), training, loading)
            if spec not in known.failed and (spec not in found or one.most > found[spec].most):
                found[spec] = one
    return found


def ranking(space: Space, known: Known) -> list[RunSpec]:
    """Return what was started beside the default at its global batch, the fastest first.

    The batch of a command is the user's affair.
    """
    same = space.default.global_batch_size
    others = (spec for spec in known.starts if spec != space.default and spec not in known.failed)
    ratios = {
        spec: known.ratio(spec, space.default)
        for spec in others
        if space.given or spec.global_batch_size == same
    }
    compared = [spec for spec, ratio in ratios.items() if ratio.n]
    return sorted(compared, key=lambda spec: -ratios[spec].value)


def rivals(space: Space, known: Known) -> list[RunSpec]:
    """Return what is worth a start beside the default at its global batch, the best one first.

    What was started stays while it is close to the leader. Then come those whose forecast is close
    to the best one. Many may share one limit: the one whose other part is faster comes first.
    """
    same = space.default.global_batch_size
    promised = {
        spec: one for spec, one in forecasts(space, known).items() if spec.global_batch_size == same
    }
    best = max((one.most for one in promised.values()), default=0.0)
    new = [
        spec
        for spec, one in promised.items()
        if one.most * WORTH >= best and spec != space.default and not known.starts.get(spec)
    ]
    no_use = {spec: _more_is_no_use(spec, promised) for spec in new}
    # Forecasts of parts measured once differ by some per cent for no reason: they go by steps.
    new.sort(
        key=lambda spec: (
            no_use[spec],
            -round(math.log(promised[spec].most, GAIN)),
            -promised[spec].least,
        )
    )
    # What a loader takes from a training, no part shows: the best one with each, then the next.
    seen: Counter[tuple[str, str]] = Counter()
    turns = {}
    for spec in new:
        loader = spec.loader, spec.dali_decode
        turns[spec] = seen[loader]
        seen[loader] += 1
    new.sort(key=lambda spec: (no_use[spec], turns[spec]))
    started = ranking(space, known)
    ratios = [known.ratio(spec, space.default).value for spec in started]
    close = [
        spec for spec, ratio in zip(started, ratios, strict=True) if ratio * CLOSE >= ratios[0]
    ]
    return [*close, *new]


def _more_is_no_use(spec: RunSpec, promised: Mapping[RunSpec, Forecast]) -> bool:
    """Say whether fewer loader processes promise as much."""
    fewer = spec.model_copy(update={"loader_workers": spec.loader_workers // 2})
    return fewer in promised and promised[fewer].most * GAIN >= promised[spec].most


def untried(space: Space, known: Known) -> list[RunSpec]:
    """Return the commands that have not been started."""
    return [one for one in space.given if not known.starts.get(one) and one not in known.failed]


def larger_batch(space: Space, known: Known, leader: RunSpec) -> RunSpec | None:
    """Return the leader with a larger batch, if that promises more; None if nothing is known of it.

    The learning rate follows by the linear rule (Goyal et al. 2017, arXiv:1706.02677).
    """
    promised = forecasts(space, known).get(leader)
    if promised is None:
        return None
    plain = promised.training.model_copy(update={"compile": False})  # as batches were tried
    tried = [plain.model_copy(update={"local_batch_size": batch}) for batch in space.larger]
    rates = {spec: known.rates[spec] for spec in tried if spec in known.rates}
    enough = [spec for spec, rate in rates.items() if rate * GAIN >= max(rates.values())]
    if not enough or plain not in known.rates:
        return None
    batch, gain = enough[0].local_batch_size, rates[enough[0]] / known.rates[plain]
    rate = min(gain * known.rates[promised.training], known.rates[promised.loading])
    lr = leader.base_lr * batch / leader.local_batch_size
    larger = leader.model_copy(update={"local_batch_size": batch, "base_lr": lr})
    worth = min(gain, rate / promised.most) >= GAIN
    return larger if worth and larger not in known.failed else None


def next_block(space: Space, bench: Bench) -> list[RunSpec]:
    """Return what to start together next; nothing if there is no time.

    Commands that were never started come first: nothing forecasts them. Then as many rivals as
    there is time for, once the leader's and the default's starts for an interval have theirs. Where
    that leaves few rivals, one later block is enough, and in the end none.
    """
    known, default = bench.known, space.default
    new = untried(space, known)[:RIVALS]
    for count in range(len(new), 0, -1):
        if bench.block_s(block := [default, *new[:count]]) <= bench.left_s:
            return block
    chosen = rivals(space, known)
    if not chosen:
        # Alone the default is of use only where nothing else can be tried.
        fits = bench.block_s([default]) <= bench.left_s and not next_parts(space, known)
        return [default] * (fits and not space.given)
    starts = len(known.starts.get(chosen[0], {}))
    later, enough = max(0, STARTS - 1 - starts), FINALISTS if starts else ENOUGH
    final_s = bench.block_s([default, *chosen[:FINALISTS]])
    for blocks, least, most in (
        (later, enough, RIVALS),  # many, with time left for a proof of the best
        (min(later, 1), 2, enough),  # few, with time left for one more block
        (0, 1, enough),  # what there is time for
    ):
        for count in range(min(most, len(chosen)), min(least, len(chosen)) - 1, -1):
            block = [default, *chosen[:count]]
            left_s = bench.left_s - blocks * final_s
            if bench.block_s(block) <= left_s:
                larger = larger_batch(space, known, chosen[0]) if starts else None
                more = [*block, larger] if larger else block
                return more if bench.block_s(more) <= left_s else block
    return []


class Verdict(StrEnum):
    """What a search may say."""

    PROVEN = "faster, proven"
    UNPROVEN = "fastest so far, not proven"
    DEFAULT = "no proven gain: keep the default"
    DISTURBED = "too disturbed to say"


def verdict(ratio: Estimate, disturbance: float = 0.0, compared: int = 1) -> Verdict:
    """Return what the ratio of the leader to the default says.

    `disturbance` is the share of the cores that other programs took. The leader is the fastest of
    `compared` configurations: the level of the proof is divided by their number (Bonferroni).
    """
    p = estimates.p_greater(ratio)
    if ratio.n >= STARTS and p * max(2, compared) <= estimates.ALPHA:
        return Verdict.PROVEN
    if disturbance > DISTURBED:
        return Verdict.DISTURBED
    return Verdict.UNPROVEN if ratio.n and ratio.value >= 1 + MARGIN else Verdict.DEFAULT
