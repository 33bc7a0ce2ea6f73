"""The meter of a group: each machine once, nothing half measured, and a reason for every null."""

from pathlib import Path

import pytest

from ddl_core.device import make_clock
from ddl_tools.rank.energy import Meter, Rapl
from tests.groups import ThreadGroup, ThreadRank
from tests.rank.energy import powercap

GPU = "01234567-89ab-cdef-0123-456789abcdef"  # there is none of this name


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = powercap.make(tmp_path / "powercap")
    monkeypatch.setenv("DDL_POWERCAP", str(root))
    return root


def window(group: ThreadRank, root: Path) -> float | None:
    """Measure one window, in which one rank lets the machine use energy."""
    with Meter(group, None) as meter:
        meter.start()
        group.barrier()
        if group.rank == 0:
            powercap.spend(root)
        group.barrier()
        return meter.stop()


def test_ranks_of_one_machine_count_its_packages_once(root: Path) -> None:
    assert ThreadGroup(3).run(lambda group: window(group, root)) == [45.0] * 3


def test_machines_are_added_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks read one tree under two names of a machine, so all of it counts twice."""
    devices = iter(["first", "second"])

    class Elsewhere(Rapl):
        def __init__(self) -> None:
            super().__init__()
            self.device = next(devices)

    monkeypatch.setattr("ddl_tools.rank.energy.Rapl", Elsewhere)
    assert ThreadGroup(2).run(lambda group: window(group, root)) == [90.0] * 2


def test_what_one_rank_cannot_read_counts_for_none(root, monkeypatch) -> None:
    readable = iter([root, root / "nowhere"])
    monkeypatch.setattr("ddl_tools.rank.energy.Rapl", lambda: Rapl(next(readable)))

    def measure(group: ThreadRank) -> tuple:
        meter = Meter(group, None)
        meter.start()
        return meter.method, meter.missing, meter.stop()

    told = sorted(ThreadGroup(2).run(measure), key=lambda one: "no RAPL" in one[1])
    assert told[0] == (None, "RAPL, CPU packages and DRAM: not readable on every rank", None)
    assert told[1] == (None, told[1][1], None)
    assert "nowhere" in told[1][1]


@pytest.mark.usefixtures("root")
def test_a_gpu_that_cannot_be_read_leaves_no_number_of_the_processors_alone() -> None:
    (told,) = ThreadGroup(1).run(lambda group: Meter(group, GPU))
    assert told.method is None
    assert told.missing.startswith("GPU: ")
    told.start()
    assert told.stop() is None


def test_a_counter_lost_in_a_window_loses_that_window_only(root, caplog) -> None:
    def measure(group: ThreadRank) -> list[float | None]:
        meter, joules = Meter(group, None), []
        for lost in (False, True, False):
            meter.start()
            group.barrier()
            counter = root / "intel-rapl:1" / "energy_uj"
            if group.rank == 1:
                powercap.spend(root)
                if lost:
                    counter.rename(counter.with_name("away"))
            group.barrier()
            joules.append(meter.stop())
            if group.rank == 1 and lost:
                counter.with_name("away").rename(counter)
            group.barrier()
        return joules

    assert ThreadGroup(2).run(measure) == [[45.0, None, 45.0]] * 2
    assert "energy of this window is lost: CPU: cannot read" in caplog.text


def test_the_clock_measures_between_start_and_stop_only(root: Path) -> None:
    def timed(group: ThreadRank) -> float | None:
        clock = make_clock(group, meter=Meter(group, None))
        if group.rank == 0:
            powercap.spend(root)
        clock.start()
        group.barrier()
        if group.rank == 1:
            powercap.advance(root, "intel-rapl:0", 3)
        window = clock.stop()
        if group.rank == 0:
            powercap.spend(root)
        return window.energy_j

    assert ThreadGroup(2).run(timed) == [3.0, 3.0]
