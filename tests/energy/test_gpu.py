"""NVML: the real binding, asked on machines without a GPU and of a driver in its place."""

import math
import time

import pytest

from ddl_core.energy.gpu import GpuCounter, GpuPower, integral
from ddl_core.energy.source import Every, Unmeasured

UUID = "01234567-89ab-cdef-0123-456789abcdef"


def has_driver() -> bool:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


@pytest.mark.parametrize("source", [GpuCounter, GpuPower])
def test_no_driver_or_no_such_gpu_is_a_reason(source) -> None:
    with pytest.raises(Unmeasured) as caught:
        source(UUID)
    if has_driver():
        assert f"NVML does not know {UUID}" in str(caught.value)
    else:
        assert str(caught.value) == "GPU: no NVIDIA driver (NVML Shared Library Not Found)"


def test_power_is_integrated_by_trapezoids() -> None:
    assert integral([0, 1, 3], [100, 200, 50]) == 150 + 250
    assert integral([5.0, 5.5], [80, 80]) == 40
    assert integral([7.0], [300.0]) == 0
    seconds = [math.pi * step / 1000 for step in range(1001)]
    watts = [math.sin(second) for second in seconds]
    assert integral(seconds, watts) == pytest.approx(2, rel=1e-5)


def test_work_is_done_again_and_again_until_it_is_stopped() -> None:
    done: list[None] = []
    every = Every(0.01, lambda: done.append(None))
    end = time.monotonic() + 60
    while len(done) < 3:
        assert time.monotonic() < end
        time.sleep(0.005)
    every.stop()
    count = len(done)
    time.sleep(0.1)
    assert len(done) == count


def test_work_that_fails_is_told_when_it_is_stopped() -> None:
    def fail() -> None:
        raise Unmeasured("lost")

    every = Every(0.0, fail)
    every._thread.join(60)
    with pytest.raises(Unmeasured, match="lost"):
        every.stop()
