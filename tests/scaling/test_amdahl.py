"""Amdahl's law: recovered parameters, bands, and a second network from one constant."""

import numpy as np
import pytest

from ddl_tools.scaling.amdahl import (
    Observation,
    efficiency,
    fit_throughput,
    serial_part,
)
from ddl_tools.scaling.paper import BASE, base_time_s, stated

SERIAL = 0.01
RANKS = (4, 16, 64, 256)


def rates(noise: float = 0.0, seed: int = 0) -> list[Observation]:
    """Return throughputs that follow the law, 100 images/s on four ranks, with some noise."""
    drawn = np.random.default_rng(seed).normal(0, noise, len(RANKS))
    values = 100.0 * np.array(RANKS) / 4 * efficiency(SERIAL, RANKS, 4) * np.exp(drawn)
    return list(map(Observation, RANKS, values.tolist()))


def test_the_law_is_a_constant_per_epoch() -> None:
    counts = np.array([4, 8, 1024])
    seconds = 50.0 * 4 / counts / efficiency(SERIAL, counts, 4)
    assert seconds == pytest.approx(50.0 * ((1 - SERIAL) * 4 / counts + SERIAL))
    assert serial_part(float(efficiency(SERIAL, 64, 4)), 64, 4) == pytest.approx(SERIAL)


def test_exact_throughputs_give_back_the_law() -> None:
    fitted = fit_throughput(rates())
    for ranks in (4, 64, 1024):
        exact = 100.0 * ranks / 4 * float(efficiency(SERIAL, ranks, 4))
        band = fitted.throughput(ranks)
        assert band.value == pytest.approx(exact, rel=0.02)
        assert band.low < exact < band.high


def test_bands_hold_nine_in_ten_new_values() -> None:
    """Of runs with 5 % of noise, at a size four times beyond the largest one."""
    new = 100.0 * 256 * efficiency(SERIAL, 1024, 4)
    inside = 0
    for seed in range(200):
        band = fit_throughput(rates(noise=0.05, seed=seed)).throughput(1024)
        value = new * np.exp(np.random.default_rng(1000 + seed).normal(0, 0.05))
        inside += int(band.low <= value <= band.high)
    assert 165 <= inside <= 198


def test_contradictory_values_widen_the_band_until_it_holds_both() -> None:
    both = [Observation(4, 100.0), Observation(1024, 19_500.0), Observation(1024, 23_400.0)]
    band = fit_throughput(both).throughput(1024)
    assert band.low < 19_500 < 23_400 < band.high


def test_one_constant_per_epoch_predicts_the_second_network() -> None:
    """ResNet50's 0.76 on 1024 GPUs gives ResNet152's 0.81 (C9)."""
    first, second = (
        next(one.value for one in stated(model, "ddp", "dali_cpu") if one.statement == statement)
        for model, statement in (("resnet50", "E02"), ("resnet152", "E08"))
    )
    constant = serial_part(first, 1024, BASE) * base_time_s("resnet50")
    predicted = efficiency(constant / base_time_s("resnet152"), 1024, BASE)
    assert float(predicted) == pytest.approx(second, rel=0.01)
