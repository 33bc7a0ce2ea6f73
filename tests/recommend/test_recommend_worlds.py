"""Simulated searches find the best configuration of worlds that are known."""

import numpy as np
import pytest

from benchmarks import recommend_worlds
from benchmarks.machine import Machine
from benchmarks.recommend_worlds import (
    NO_ANSWER,
    Outcome,
    Simulation,
    cases,
    pair_of,
    searched,
    share,
)
from benchmarks.stranger import KINDS, stranger
from benchmarks.worlds import worlds
from ddl_core.errors import SpecError
from ddl_tools.recommend.plan import Verdict, search

SEARCHES = 20
WORLDS = worlds() | {"stranger": stranger}


def outcomes(name: str, count: int = SEARCHES) -> list[Outcome]:
    return [searched(*case) for case in cases(WORLDS[name], count)]


@pytest.mark.parametrize("name", WORLDS)
def test_every_world_gives_an_answer(name: str) -> None:
    found = outcomes(name, count=3)
    assert all(one.verdict != NO_ANSWER and 0 <= one.loss < 1 for one in found)
    assert all(one.verdict != Verdict.DISTURBED for one in found) or name == "neighbour"


@pytest.mark.parametrize("kind", KINDS)
def test_a_strangers_machine_can_train_the_default(kind) -> None:
    ((world, rates, _),) = cases(kind, 1)
    assert 0 < rates[pair_of(world.space.default)] <= world.best(rates)


def test_equal_configurations_lose_nothing() -> None:
    assert [one.loss for one in outcomes("equal")] == [0.0] * SEARCHES


def test_nearly_all_searches_on_a_gpu_end_within_10_percent_of_the_best() -> None:
    assert sum(one.loss <= 0.1 for one in outcomes("h200")) >= SEARCHES - 2


@pytest.mark.parametrize("name", ["h200", "two_cores"])
def test_a_time_that_is_too_short_is_an_error(name: str) -> None:
    ((world, rates, noise),) = cases(WORLDS[name], 1)
    text = r"too short to compare two configurations; the same command .* needs \d+ more min"
    with pytest.raises(SpecError, match=text):
        search(world.space, Simulation(world, rates, noise, minutes=0.5))


def test_the_same_seed_makes_the_same_searches() -> None:
    assert outcomes("stranger", 2) == outcomes("stranger", 3)[:2]


def test_a_neighbour_slows_windows_and_is_noticed() -> None:
    generator = np.random.default_rng(0)
    machines = [Machine(generator, 10, neighbour) for neighbour in (False, True)]
    factors = [np.concatenate([one.block([5.0] * 5) for _ in range(3)]) for one in machines]
    assert factors[1].mean() < factors[0].mean()
    assert machines[0].disturbance == 0 < machines[1].disturbance


def test_intervals_of_shares_are_exact() -> None:
    assert share(0, 20) == {"share": 0.0, "low": 0.0, "high": pytest.approx(0.1684, abs=1e-4)}
    assert share(50, 1000)["low"] == pytest.approx(0.0373, abs=1e-4)
    assert recommend_worlds.share(1, 1)["high"] == 1.0
