"""RAPL counters in a folder like the kernel's: what is counted, what is not, what is refused."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from ddl_tools.rank.energy import Rapl, Unmeasured
from tests.rank.energy import powercap


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return powercap.make(tmp_path / "powercap")


def test_packages_and_memory_count_and_no_part_counts_twice(root: Path) -> None:
    meter = Rapl(root)
    assert meter.method == "RAPL, CPU packages and DRAM"
    meter.start()
    used = powercap.spend(root)
    assert meter.stop() == used == 1 + 4 + 8 + 32
    powercap.spend(root)
    meter.start()
    assert meter.stop() == 0.0, "what is used between windows belongs to none"


def test_packages_without_memory_say_so(tmp_path: Path) -> None:
    root = powercap.make(tmp_path / "amd", {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core"})
    meter = Rapl(root)
    assert meter.method == "RAPL, CPU packages"
    meter.start()
    powercap.advance(root, "intel-rapl:0", 7)
    powercap.advance(root, "intel-rapl:0:0", 5)
    assert meter.stop() == 7.0


def test_a_long_window_is_read_in_between_and_may_wrap_around_often(root: Path) -> None:
    meter = Rapl(root, every_s=0.01)
    meter.start()
    most = powercap.RANGE_UJ * 3 // 4
    for _ in range(4):  # three times the range
        before = meter._total_uj
        powercap.advance(root, "intel-rapl:0", most / 1e6)
        end = time.monotonic() + 60
        while meter._total_uj == before:
            assert time.monotonic() < end, "the thread does not read"
            time.sleep(0.005)
    assert meter.stop() == pytest.approx(4 * most / 1e6)


def test_a_counter_that_fails_within_a_window_is_told_at_its_end(root: Path) -> None:
    meter = Rapl(root, every_s=0.01)
    meter.start()
    (root / "intel-rapl:0" / "energy_uj").unlink()
    with pytest.raises(Unmeasured, match="energy_uj"):
        meter.stop()


def test_no_counters_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(Unmeasured, match=r"no RAPL counters in .*nowhere"):
        Rapl(tmp_path / "nowhere")
    with pytest.raises(Unmeasured, match="no RAPL counters"):
        Rapl(powercap.make(tmp_path / "psys", {"intel-rapl:0": "psys", "intel-rapl:1": "dram"}))


def test_a_counter_of_the_administrator_is_a_reason() -> None:
    """As most kernels have it: names for all, counters for root alone."""
    with tempfile.TemporaryDirectory() as place:
        root = powercap.make(Path(place) / "powercap")
        Path(place).chmod(0o755)
        for zone in powercap.ZONES:
            (root / zone / "energy_uj").chmod(0o400 if os.geteuid() == 0 else 0)
        if administrator := os.geteuid() == 0:
            os.seteuid(65534)  # nobody
        try:
            with pytest.raises(
                Unmeasured, match=r"this user may not read .*intel-rapl:0/energy_uj"
            ):
                Rapl(root)
        finally:
            if administrator:
                os.seteuid(0)
