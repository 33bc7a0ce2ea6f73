from dataclasses import replace

import numpy as np
import pytest

from ddl_core.errors import SpecError
from ddl_core.scaling.collectives import Network
from ddl_core.scaling.fit import Parameter, fit
from ddl_core.scaling.gradients import resnet
from ddl_core.scaling.loading import Loading
from ddl_core.scaling.messages import Training
from ddl_core.scaling.model import Machine, predict
from ddl_core.scaling.simulate import simulate

MACHINE = Machine(0.1, Network(4e9, 5e-6, 100e9, 1e-6, 4))
RANKS = [1, 2, 4, 8, 16, 64]
STRATEGIES = ("ddp", "horovod", "deepspeed")


def training(strategy: str = "ddp", **fields: object) -> Training:
    return Training(resnet("resnet50"), strategy, **fields)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", RANKS)
def test_without_chance_it_is_the_closed_form(strategy: str, ranks: int) -> None:
    machine = replace(MACHINE, framework_s=0.003)
    job = training(strategy)
    found, expected = simulate(machine, job, ranks, 3), predict(machine, job, ranks)
    assert found.step_s == pytest.approx(expected.step_s[0])
    assert found.all_reduce_share == pytest.approx(expected.all_reduce_share[0], abs=1e-9)


@pytest.mark.parametrize(
    "delays",
    [{"stall_s": 0.004}, {"jitter": 0.05}, {"jitter": 0.03, "stall_s": 0.002}, {"straggler": 0.2}],
)
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_waiting_is_the_closed_form_on_average(delays: dict, ranks: int) -> None:
    machine = replace(MACHINE, **delays)
    found = simulate(machine, training(), ranks, 2000)
    expected = predict(machine, training(), ranks)
    more = expected.step_s[0] - predict(MACHINE, training(), ranks).step_s[0]
    assert found.step_s.mean() == pytest.approx(expected.step_s[0], abs=2e-4 + 0.1 * more)
    assert found.all_reduce_share == pytest.approx(expected.all_reduce_share[0], rel=0.1)


def test_a_loader_without_spread_is_the_closed_form() -> None:
    for loading in (Loading(node_rate=1280), Loading(shared_rate=5000, spare_cores=False)):
        machine = replace(MACHINE, loading=loading)
        found = simulate(machine, training(), 16, 60).step_s[20:]
        assert found.mean() == pytest.approx(predict(machine, training(), 16).step_s[0], rel=1e-3)


def test_a_deeper_prefetch_hides_more_of_a_loaders_spread() -> None:
    def step(prefetch: int) -> float:
        loading = Loading(rank_rate=800, spread=0.5, prefetch=prefetch)
        return float(simulate(replace(MACHINE, loading=loading), training(), 8, 400).step_s.mean())

    ideal = float(predict(MACHINE, training(), 8).step_s[0])
    steps = [step(prefetch) for prefetch in (1, 2, 8)]
    assert steps[0] > steps[1] > steps[2] > ideal


def test_the_same_seed_gives_the_same_steps() -> None:
    machine = replace(MACHINE, stall_s=0.01, jitter=0.1)
    first, again, other = (simulate(machine, training(), 4, 5, seed) for seed in (1, 1, 2))
    assert (first.step_s == again.step_s).all()
    assert (first.step_s != other.step_s).any()


@pytest.mark.parametrize(
    ("field", "planted", "machine"),
    [
        ("jitter", 0.08, replace(MACHINE, jitter=0.08)),
        ("stall_s", 0.01, replace(MACHINE, stall_s=0.01)),
        ("straggler", 0.2, replace(MACHINE, straggler=0.2)),
    ],
)
def test_planted_delays_are_found_again(field: str, planted: float, machine: Machine) -> None:
    ranks = [1, 2, 4, 8]
    measured = [simulate(machine, training(), count, 1000).step_s.mean() for count in ranks]
    parameters = [
        Parameter("compute_s", "s", 0.01, 1.0, 0.1),
        Parameter(field, "", 1e-5, 1.0, 1e-5),
    ]

    def predicted(point: dict[str, float]) -> np.ndarray:
        return predict(replace(MACHINE, **point), training(), ranks).step_s

    found = fit(parameters, predicted, measured, 0.005)
    assert found.best[field] == pytest.approx(planted, rel=0.1)
    estimate = found.estimates[field]
    assert estimate.low < planted < estimate.high
    assert estimate.known == "identified"


def test_a_planted_bandwidth_is_found_again() -> None:
    ranks, slow = [1, 2, 4, 8], Network(2e8)
    machine = replace(MACHINE, network=slow)
    measured = [simulate(machine, training(), count, 3).step_s.mean() for count in ranks]
    found = fit(
        [
            Parameter("compute_s", "s", 0.01, 1.0, 0.1),
            Parameter("bandwidth", "B/s", 1e7, 1e11, 1e11),
        ],
        lambda point: (
            predict(
                Machine(point["compute_s"], Network(point["bandwidth"])), training(), ranks
            ).step_s
        ),
        measured,
        0.005,
    )
    assert found.best["bandwidth"] == pytest.approx(2e8, rel=0.1)


def test_absurd_simulations_are_refused() -> None:
    with pytest.raises(SpecError, match="ranks=0 has to be at least 1"):
        simulate(MACHINE, training(), 0, 1)
    with pytest.raises(SpecError, match="steps=0 has to be above 0"):
        simulate(MACHINE, training(), 1, 0)
