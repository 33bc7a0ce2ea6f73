"""Losses of the searches of `ddl recommend`, by simulation in worlds with a known answer.

    python -m benchmarks.recommend_worlds

Each search has ten simulated minutes on a `benchmarks.machine.Machine` in one of
`benchmarks.worlds` or `benchmarks.stranger`; some have twenty. Its loss compares the true rate of
what it recommends with that of the best configuration at the default's global batch. Targets: a
loss of at most 5 % in 95 % of the searches, at most 5 % wrongly proven gains, and "too disturbed"
beside a neighbour alone. The harsh worlds and that of random effects have none. The search of the
commit `OLD` runs beside it with its own code. Takes about ten minutes.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from scipy.special import betaincinv

from benchmarks.interleaved import estimate_of, stored
from benchmarks.machine import EPOCHS, Machine, loading_of, training_of
from benchmarks.stranger import stranger
from benchmarks.worlds import Pair, World, Worlds, worlds
from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_tools.analysis.estimates import LEVEL
from ddl_tools.launch.interactive import one_run_per_process
from ddl_tools.launch.interleave import group_sizes
from ddl_tools.recommend.plan import Known, Verdict, is_part, ranking, search, verdict
from ddl_tools.recommend.search import CACHED, UNSURE
from ddl_tools.recommend.search_space import EPOCH_S
from ddl_tools.records.paths import PROJECT

SEED = 20261128
SEARCHES = 1000
OLD_SEARCHES = 200
MINUTES, LONGER = 10.0, 20.0
GOOD_LOSS = 0.05
NO_ANSWER = "no answer"
OLD = "969ccf21"
OLD_FOLDER = PROJECT / "build" / "old_search"
# What a search expects before it has measured, seconds.
PART_S, COMPILE_S = 5.0, 80.0
START_S = {"cpu": 7.0, "cuda": 35.0}  # with its epochs
# Starts at the same time take as long as the longest of them, and so much more for each further
# one: disks, memory and drivers are shared, and runs end one after the other. Invented.
CROWD = 0.15
FAILURE_S = 2.0  # of a part without memory


class Simulation:
    """A bench that measures in a world; `rates` are the true ones of all pairs."""

    def __init__(
        self, world: World, rates: Mapping[Pair, float], generator: np.random.Generator,
        minutes: float,
    ) -> None:  # fmt: skip
        self.known = Known()
        self.machine = Machine(generator, minutes, world.neighbour)
        self.starts = 0
        self._world, self._rates, self._generator = world, rates, generator
        self._compiled: set[Any] = set()
        self._process: tuple[str, int] | None = None  # that measures parts
        self._blocks = 0
        self._first_s = 0.0  # of the first part, with its process
        self._compile_s = COMPILE_S  # of the latest training that was compiled
        self._start_s = self._expected_s()  # of what starts together, without epochs
        self._default_rate = rates[pair_of(world.space.default)]

    @property
    def left_s(self) -> float:
        """Seconds that are left for measuring."""
        return self.machine.left_s

    def cost_s(self, spec: RunSpec) -> float:
        """Return the seconds of a part, or of the epochs of a start, as far as is known now."""
        if spec in self.known.took:
            return self.known.took[spec]
        part = is_part(spec)
        like = [seconds for one, seconds in self.known.took.items()
                if is_part(one) == part and not one.compile]  # fmt: skip
        guess = PART_S if part else EPOCHS * EPOCH_S[spec.device]
        seconds = float(np.mean(like)) if like else guess
        if part and self._process != process_of(spec):
            seconds += self._world.times.process_s
        if spec.compile and spec.work == "train":
            known = training_of(spec) in self._compiled
            seconds += CACHED * self._compile_s if known else COMPILE_S
        return seconds

    def _expected_s(self) -> float:
        """Return the seconds of a start without epochs, before there was one."""
        device = self._world.space.default.device
        return UNSURE * max(START_S[device], self._first_s) - EPOCHS * EPOCH_S[device]

    def block_s(self, block: Sequence[RunSpec]) -> float:
        """Return the seconds that a block takes: its starts and their epochs."""
        groups = len(group_sizes(block, self._world.cores))
        return groups * self._start_s + sum(map(self.cost_s, block))

    def measure_parts(self, parts: Sequence[RunSpec]) -> None:
        """Measure parts one after the other."""
        world, known = self._world, self.known
        for spec in parts:
            if self._process != process_of(spec):
                self._process = process_of(spec)
                self.machine.spend(world.times.process_s)
            began_s = self.left_s
            rate = self._rate(spec)
            if rate is None:
                known.failed[spec] = "out of memory"
                self.machine.spend(FAILURE_S)
                self._process = None
                continue
            if spec.work == "train":
                self._compile(spec)
                if spec.compile:
                    self._compile_s = began_s - self.left_s
            factor = self.machine.part(world.times.part_s)
            if factor is None:
                return
            one = spec.model_copy(update={"repeat": 0})
            known.rates[one] = max(known.rates.get(one, 0.0), rate * factor)
            known.took[one] = began_s - self.left_s
            if not self._first_s:
                self._first_s = known.took[one] + world.times.process_s
                self._start_s = self._expected_s()
            if one_run_per_process(spec):
                self._process = None

    def _rate(self, spec: RunSpec) -> float | None:
        """Return the true rate of a part; None if it runs out of memory."""
        world = self._world
        own = loading_of(spec) if spec.work == "load" else training_of(spec)
        if world.fails(own):
            return None
        return world.loadings[own] if spec.work == "load" else world.trainings[own]

    def measure_block(self, block: Sequence[RunSpec]) -> None:
        """Start configurations, interleaved."""
        times, name = self._world.times, f"{self._blocks:02}"
        epoch_s = EPOCH_S[self._world.space.default.device]
        self._blocks += 1
        took: dict[RunSpec, float] = {}
        left, sizes = iter(block), group_sizes(block, self._world.cores)
        starts_s = 0.0
        for size in sizes:
            longest_s = self._generator.uniform(*times.start_s, size).max()
            starts_s += longest_s * (1 + CROWD * (size - 1))
            for spec in islice(left, size):
                began_s = self.left_s
                self._compile(spec)  # in its first step, which each makes alone
                if pair_of(spec) in self._rates:
                    took[spec] = began_s - self.left_s
                else:
                    self.known.failed[spec] = "out of memory"
        self.machine.spend(starts_s)
        self._start_s = starts_s / len(sizes)
        rates = [self._rates[pair_of(spec)] for spec in took]
        windows_s = [epoch_s * self._default_rate / rate for rate in rates]
        factors = self.machine.block(windows_s)
        for spec, seconds in zip(took, windows_s, strict=True):
            self.known.took[spec] = took[spec] + EPOCHS * seconds
        if factors is not None:
            self.starts += len(took)
            for spec, rate, factor in zip(took, rates, factors, strict=True):
                self.known.starts.setdefault(spec, {})[name] = float(rate * factor)

    def _compile(self, spec: RunSpec) -> None:
        times, training = self._world.times, training_of(spec)
        if spec.compile:
            self.machine.spend(times.cached_s if training in self._compiled else times.compile_s)
            self._compiled.add(training)


def process_of(spec: RunSpec) -> tuple[str, int]:
    """Return what parts of one process have in common."""
    return spec.strategy, spec.gpus_per_node


def pair_of(spec: RunSpec) -> Pair:
    """Return the training and the loader of a configuration."""
    return training_of(spec), loading_of(spec)


@dataclass(frozen=True)
class Outcome:
    """The answer of a search: its loss, its verdict, and the leader's true ratio to the default.

    `starts` is the number of whole configurations that it measured.
    """

    loss: float
    verdict: str
    ratio: float
    starts: int

    @property
    def wrong(self) -> bool:
        """Whether a gain that is none is called proven."""
        return self.verdict == Verdict.PROVEN and self.ratio <= 1


def searched(world: World, rates: Mapping[Pair, float], generator: np.random.Generator,
             minutes: float = MINUTES) -> Outcome:  # fmt: skip
    """Search once; a search without an answer keeps the default."""
    bench, default = Simulation(world, rates, generator, minutes), world.space.default
    try:
        search(world.space, bench)
    except SpecError:
        return outcome(world, rates, pair_of(default), NO_ANSWER, bench.starts)
    order = ranking(world.space, bench.known)
    leader = order[0] if order else default
    said = verdict(
        bench.known.ratio(leader, default), bench.machine.disturbance, max(1, len(order))
    )
    return outcome(world, rates, pair_of(leader), said, bench.starts)


def outcome(
    world: World, rates: Mapping[Pair, float], leader: Pair, said: str, starts: int
) -> Outcome:
    """Return how good an answer is; the leader is recommended where it seems faster."""
    default = rates[pair_of(world.space.default)]
    takes = said in (Verdict.PROVEN, Verdict.UNPROVEN)
    loss = 1 - (rates[leader] if takes else default) / world.best(rates)
    return Outcome(loss, str(said), rates[leader] / default, starts)


Case = tuple[World, dict[Pair, float], np.random.Generator]


def cases(make: Worlds, count: int, seed: int = SEED) -> Iterator[Case]:
    """Yield worlds, true rates and a stream of noise for some searches, always the same ones."""
    for stream in np.random.default_rng(seed).spawn(count):
        of_world, noise = stream.spawn(2)
        world = make(of_world)
        yield world, world.drawn(of_world), noise


def summary(found: Sequence[Outcome]) -> dict[str, Any]:
    """Return shares of searches with their 95 % intervals, and losses."""
    answers = [one for one in found if one.verdict != Verdict.DISTURBED]
    losses = [one.loss for one in found]
    verdicts = Counter(one.verdict for one in found)
    return {
        "searches": len(found),
        "good": share(sum(one.loss <= GOOD_LOSS for one in found), len(found)),
        "good_of_answers": share(sum(one.loss <= GOOD_LOSS for one in answers), len(answers)),
        "loss_mean": float(np.mean(losses)),
        "loss_95": float(np.quantile(losses, 0.95)),
        "wrongly_proven": share(sum(one.wrong for one in found), len(found)),
        "verdicts": {name: verdicts[name] / len(found) for name in [*map(str, Verdict), NO_ANSWER]},
        "starts_median": float(np.median([one.starts for one in found])),
    }


def share(hits: int, n: int) -> dict[str, float]:
    """Return a share with its 95 % interval (Clopper and Pearson 1934, Biometrika 26, 404-413)."""
    tail = (1 - LEVEL) / 2
    low = float(betaincinv(hits, n - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0
    return {"share": hits / n if n else float("nan"), "low": low, "high": high}


def simulate(make: Worlds, count: int = SEARCHES, minutes: float = MINUTES) -> dict[str, Any]:
    """Search some worlds and summarise."""
    return summary([searched(*case, minutes) for case in cases(make, count)])


def old_searches(make: Worlds, count: int = OLD_SEARCHES) -> dict[str, Any]:
    """Let the search of `OLD` search the same worlds, in a process with its own code."""
    if not OLD_FOLDER.exists():
        packed = subprocess.run(
            ["git", "archive", OLD, "ddl_core", "ddl_tools"],
            cwd=PROJECT, check=True, capture_output=True,
        ).stdout  # fmt: skip
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(OLD_FOLDER, filter="data")
    made = list(cases(make, count))
    asked = {"seed": SEED, "minutes": MINUTES, "searches": [_as_plain(*case[:2]) for case in made]}
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.old_search"], cwd=OLD_FOLDER, env=environment,
        input=json.dumps(asked), text=True, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    found = []
    for (world, rates, _), answer in zip(made, json.loads(done.stdout), strict=True):
        leader = {name_of(pair): pair for pair in rates}.get(answer["leader"])
        said = Verdict.UNPROVEN if leader else NO_ANSWER
        leader = leader or pair_of(world.space.default)
        found.append(outcome(world, rates, leader, said, answer["starts"]))
    return summary(found)


def name_of(pair: Pair) -> str:
    """Return a pair as text, the same in both searches."""
    return json.dumps([*pair[0], *pair[1]])


def _as_plain(world: World, rates: Mapping[Pair, float]) -> dict[str, Any]:
    """Return what the old search may know of a world, and the truth."""
    space = world.space
    local = {space.default.local_batch_size, *(one["local_batch_size"] for one in space.ranks)}
    return {
        "default": space.default.model_dump(exclude_defaults=True),
        "ranks": [one["gpus_per_node"] for one in space.ranks],
        "strategies": [space.default.strategy, *space.strategies],
        "loaders": [one["loader"] for one in space.loaders if "dali_decode" not in one],
        "times": world.times._asdict(),
        "neighbour": world.neighbour,
        "images": space.images,
        "rates": {name_of(pair): rate for pair, rate in rates.items() if pair[0].batch in local},
    }


def shown(name: str, found: Mapping[str, Any]) -> str:
    """Return a summary as one line."""
    good, wrong = (estimate_of(found[name], "share") for name in ("good", "wrongly_proven"))
    return (
        f"{name}: within 5 % {good:.3f} (of answers {found['good_of_answers']['share']:.3f}), "
        f"loss {found['loss_mean']:.3f}, 95 %: {found['loss_95']:.3f}, wrongly proven "
        f"{wrong:.3f}, "
        f"{found['starts_median']:g} starts; "
        + ", ".join(f"{one} {part:.3f}" for one, part in found["verdicts"].items() if part)
    )


def measure() -> dict[str, Any]:
    """Simulate all worlds and print."""
    longer = partial(simulate, minutes=LONGER)
    works = {"new": simulate, "longer": longer, "old": old_searches}
    found: dict[str, Any] = {"minutes": MINUTES, **{name: {} for name in works}}
    for name, make in {**worlds(), "stranger": stranger}.items():
        for kind, work in works.items():
            found[kind][name] = work(make)
            print(shown(f"{kind} {name}", found[kind][name]), flush=True)
    return found


if __name__ == "__main__":
    stored("recommend_worlds", measure)
