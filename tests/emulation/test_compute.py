"""The emulated accelerator: deadlines, draws, and what it keeps of them."""

import time

import numpy as np
import pytest

from ddl_core.config import RunSpec
from ddl_tools.emulation import compute
from ddl_tools.emulation.compute import MIN_FACTOR, SimulatedCompute
from tests.fields import EMULATED


def paced(rank: int = 0, **fields: object) -> SimulatedCompute:
    spec = RunSpec(**{**EMULATED, "nodes": 2, "emu_step_ms": 200, **fields})
    return SimulatedCompute(spec, rank)


def factors(steps: int = 400, rank: int = 0, **fields: object) -> list[float]:
    one = paced(rank, emu_step_ms=1, **fields)
    for _ in range(steps):
        one.begin_step()
        one.end_step()
    return one.factors


class Sleeps:
    """A clock on which sleeping takes longer than asked."""

    def __init__(self, late_s: float) -> None:
        self.now, self.late_s = 0.0, late_s

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late_s


def test_a_step_takes_its_time_and_no_core() -> None:
    one, cpu_s, begun = paced(), time.process_time(), time.perf_counter()
    one.begin_step()
    for _ in range(10):
        one.work(0.1)
    one.end_step()
    assert 0.2 <= time.perf_counter() - begun < 0.4
    assert time.process_time() - cpu_s < 0.05
    assert one.factors == [1.0]


def test_waking_up_late_does_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Sleeps(late_s=0.001)
    monkeypatch.setattr(compute, "time", clock)
    one = paced()
    one.begin_step()
    for _ in range(100):
        one.work(0.01)
    one.end_step()
    assert clock.now == pytest.approx(0.2, abs=0.0011)
    assert one.late_s == [pytest.approx(0.001)]


def test_the_last_of_several_ranks_is_the_straggler() -> None:
    assert factors(1, rank=1, emu_straggler=1.5) == [1.5]
    assert factors(1, rank=0, emu_straggler=1.5) == [1.0]
    assert factors(1, rank=0, emu_straggler=1.5, nodes=1) == [1.0]


def test_jitter_has_its_spread_and_every_rank_its_own() -> None:
    one, other = factors(emu_jitter=0.1), factors(rank=1, emu_jitter=0.1)
    assert np.std(one) == pytest.approx(0.1, rel=0.15)
    assert np.mean(one) == pytest.approx(1, abs=0.02)
    assert one == factors(emu_jitter=0.1)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.2
    assert one != factors(emu_jitter=0.1, repeat=1)


def test_a_rank_that_stands_for_many_gpus_waits_for_the_slowest() -> None:
    """The expected maximum of 64 standard normal numbers is 2.34 (order statistics, any table)."""
    assert np.mean(factors(emu_jitter=0.1, emu_draws=64)) == pytest.approx(1.234, abs=0.02)
    assert min(factors(emu_jitter=1)) == MIN_FACTOR
