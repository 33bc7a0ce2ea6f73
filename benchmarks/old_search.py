"""Searches of an older `ddl recommend` in simulated worlds.

`benchmarks.recommend_worlds` runs this module in a process that imports the older `ddl_core` and
`ddl_tools`. All decisions are the older code's; observations and time are simulated.
"""

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from ddl_tools.recommend.candidates import Request, Space
from ddl_tools.recommend.race import Observation, Race, race

from benchmarks.machine import EPOCHS, Machine, loading_of, training_of
from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, SpecError
from ddl_tools.recommend import search as module
from ddl_tools.recommend.search import PILOT_STEPS, START_S, Search, first
from ddl_tools.records.paths import Tree


class Simulated(Search):
    """A search whose entries are invented."""

    def __init__(self, world: dict[str, Any], generator: np.random.Generator, minutes: float):
        self._world, self._generator = world, generator
        self._items: list[Any] = []
        self._blocks: list[list[RunSpec]] = []
        self._seen: list[Observation[RunSpec]] = []
        self._compiled: set[Any] = set()
        self.machine = Machine(generator, minutes, world["neighbour"])
        request = Request("resnet50", Path("data"), minutes)
        super().__init__(request, Tree(Path("unused")), _space(world))

    @property
    def left_s(self) -> float:
        """Simulated seconds that are left."""
        return self.machine.left_s

    def run(self) -> None:
        """Measure until the time is over."""
        self._pilot()
        while self.left_s > 0 and (chosen := self._next()):
            self._measure(chosen)

    def _pilot(self) -> None:
        for spec in self.space.pilots():
            spent_s = self._start(spec)
            if (rate := self._rate(spec)) is None:
                self.failed[spec] = "out of memory"
                continue
            samples = PILOT_STEPS * spec.global_batch_size
            self.machine.spend(2 * samples / rate)
            self._start_s = max(START_S, spent_s / 2)
            # An epoch has a length in seconds, so that rows are as the machine gives them.
            factor = self.machine.part(samples / rate) or 1.0
            row: Any = SimpleNamespace(wall_s=samples / rate / factor, samples=samples)
            self._take_baseline(spec, [row])
            return
        raise LaunchError("nothing can be trained")

    def entries(self) -> list[Any]:
        """Return what was measured, and what failed."""
        return self._items

    def _planned(self) -> tuple[list[RunSpec], int]:
        every = dict.fromkeys(spec for block in self._blocks for spec in block)
        return list(every), len(self._blocks)

    def race(self, nodes: int | None = 1) -> Race[RunSpec]:
        """Return what is left of the configurations."""
        failed = {item.spec for item in self._items if item.state == "failed"}
        return race([one for one in self._seen if one.configuration not in failed])

    def _measure(self, chosen: Any) -> None:
        name = f"{len(self._blocks):04}"
        rates: dict[RunSpec, float] = {}
        began_s = self.left_s
        for spec in chosen:
            self._start(spec)
            rate = self._rate(spec)
            if rate is None:
                self._items.append(_item(spec, "failed", 0.0))
            else:
                rates[spec] = rate
        size = self.space.baseline
        images = max(size.train_images or 0, size.min_steps_per_epoch * size.global_batch_size)
        windows_s = [images / rate for rate in rates.values()]
        factors = self.machine.block(windows_s)
        if self.left_s < 0:
            return
        self._blocks.append(list(chosen))
        took = [EPOCHS * seconds for seconds in windows_s]
        for number, (spec, rate) in enumerate(rates.items()):
            self._items.append(_item(spec, "completed", took[number]))
            if factors is not None and _is_whole(spec):
                self._seen.append(Observation(first(spec), name, rate * float(factors[number])))
        if took:
            self._start_s = (began_s - self.left_s - sum(took)) / len(took)

    def _rate(self, spec: RunSpec) -> float | None:
        """Return the true rate; the leader's loader and training alone take as long as itself."""
        loader = self.race().left[0] if not _is_whole(spec) else spec
        name = json.dumps([*training_of(spec), *loading_of(loader)])
        return self._world["rates"].get(name)

    def _start(self, spec: RunSpec) -> float:
        times, training = self._world["times"], training_of(spec)
        seconds = self._generator.uniform(*times["start_s"])
        if spec.compile and spec.work == "train":
            seconds += times["cached_s" if training in self._compiled else "compile_s"]
            self._compiled.add(training)
        self.machine.spend(seconds)
        return seconds


def _is_whole(spec: RunSpec) -> bool:
    return spec.work == "train" and spec.loader != "synthetic"


def _item(spec: RunSpec, state: str, took_s: float) -> Any:
    return SimpleNamespace(spec=spec, state=state, reason="out of memory", took_s=took_s)


def _space(world: dict[str, Any]) -> Space:
    """Return the older space of a world: FP32, and single changes by factor."""
    on_gpu = world["default"].get("device") == "cuda"
    baseline = RunSpec.parse({**world["default"], "precision": "fp32"})
    factors: dict[str, Any] = {
        "workers": [
            {"gpus_per_node": one, "strategy": "ddp" if one > 1 else "single"}
            for one in world["ranks"]
        ],
        "loader": [{"loader": one} for one in world["loaders"]],
        "strategy": [{"strategy": one} for one in world["strategies"] if one != "single"],
        "loading": [{"loader_workers": 2 * baseline.loader_workers}],
    }
    if on_gpu:
        factors |= {
            "precision": [{"precision": "bf16"}],
            "layout": [{"channels_last": True}],
            "compile": [{"compile": True}],
        }
    return Space(baseline, factors, world["images"], "simulated", "simulated")


def searched(world: dict[str, Any], generator: np.random.Generator, minutes: float) -> Any:
    """Search once and return the recommended configuration, and the number of starts."""
    search = Simulated(world, generator, minutes)
    with contextlib.suppress(SpecError, LaunchError):
        search.run()
    left = search.race().left
    leader = left[0] if left else search.space.baseline
    name = json.dumps([*training_of(leader), *loading_of(leader)])
    return {"leader": name, "starts": len(search._seen)}


def main() -> None:
    """Read worlds from standard input, and write the answers."""
    asked = json.load(sys.stdin)
    module._epochs_s = lambda item: item.took_s  # type: ignore[assignment]
    streams = np.random.default_rng(asked["seed"] + 1).spawn(len(asked["searches"]))
    pairs = zip(asked["searches"], streams, strict=True)
    json.dump([searched(world, stream, asked["minutes"]) for world, stream in pairs], sys.stdout)


if __name__ == "__main__":
    main()
