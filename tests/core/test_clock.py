"""The clock: what it counts where, and that the slowest rank decides."""

import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from ddl_core.device import make_clock
from ddl_core.step import marking_backward
from ddl_core.timing import MARK, Clock, by_step, cpu_seconds
from tests.fake_gpu import GPU, Timeline
from tests.groups import ThreadGroup, ThreadRank


class RankTime(threading.local):
    """The time of a rank, seconds: it goes on where the rank sleeps or waits for a later one."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def told(monkeypatch) -> RankTime:
    """What the ranks of a `ThreadGroup` have in the place of the module `time`."""
    found, arrivals, plain = RankTime(), {}, ThreadRank.barrier

    def barrier(rank: ThreadRank) -> None:
        arrivals[rank.rank] = found.now
        plain(rank)
        latest = max(arrivals.values())
        plain(rank)  # nobody comes again before all have read it
        found.now = latest

    monkeypatch.setattr(ThreadRank, "barrier", barrier)
    monkeypatch.setattr("ddl_core.timing.time", found)
    return found


def window_of(group: ThreadGroup, work):
    def timed(rank):
        clock = make_clock(rank)
        clock.start()
        work(rank, clock)
        return clock.stop()

    return group.run(timed)


def test_the_slowest_rank_decides_and_all_ranks_agree(told):
    def work(rank, clock):
        told.sleep(0.4 if rank.rank == 1 else 0.1)
        clock.step_done()

    first, second = window_of(ThreadGroup(2), work)
    assert first.wall_s == second.wall_s == 0.4
    assert (first.rank_wall_s_min, first.rank_wall_s_max) == (0.1, 0.4)
    assert first.step_s_median == 0.4


def test_a_window_without_steps_has_no_step_time():
    (window,) = window_of(ThreadGroup(1), lambda rank, clock: None)
    assert window.step_s_median is None
    assert window.step_s_p95 is None


def test_cpu_time_counts_work_and_not_sleep(monkeypatch):
    # Of the children, those of other tests are still busy, as with importing torch.
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive: [])
    before = cpu_seconds()
    time.sleep(0.3)
    assert cpu_seconds() - before < 0.3
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    assert cpu_seconds() - before == pytest.approx(0.2, abs=0.15)


@pytest.mark.multiprocess
def test_cpu_time_of_a_child_that_has_ended_counts():
    before = cpu_seconds()
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-I", "-S", "-c", busy], check=True)
    assert cpu_seconds() - before >= 0.49  # both are sums of rounded times


SPENT = {"start": 0.3, "data": 0.05, "compute": 0.1, "communication": 0.15, "update": 0.2}
LATE = 0.2


class Planted(nn.Module):
    """A network of one parameter whose backward pass takes as long as it is told."""

    def __init__(self, told: RankTime) -> None:
        super().__init__()
        self.weight, self._told = nn.Parameter(torch.ones(1)), told

    def forward(self, seconds: float) -> torch.Tensor:
        product = self.weight * 2
        product.register_hook(lambda gradient: self._told.sleep(seconds))
        return product


def train(rank, clock: Clock, told: RankTime, steps: int) -> None:
    """Take as long for each part of a step as `SPENT` says; rank 1 computes `LATE` longer."""

    def data():
        for step in range(steps):
            told.sleep(SPENT["data" if step else "start"])
            yield step

    network = Planted(told)
    with marking_backward(clock, rank, network):
        for _ in clock.batches(data()):
            network(SPENT["compute"] + LATE * rank.rank).sum().backward()
            rank.barrier()
            told.sleep(SPENT["communication"])
            clock.gradients_averaged()
            told.sleep(SPENT["update"])
            clock.step_done()


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_part_of_a_step_is_found_as_it_was_planted(told, ranks):
    late = 3 * LATE / 2 if ranks == 2 else 0.0  # one computes longer, and the other waits
    for window in window_of(ThreadGroup(ranks), lambda rank, clock: train(rank, clock, told, 3)):
        assert window.spent.model_dump() == pytest.approx(
            {
                "start_s": SPENT["start"],
                "data_s": 2 * SPENT["data"],
                "compute_s": 3 * SPENT["compute"] + late,
                "transfer_s": 3 * SPENT["communication"],
                "waiting_s": late,
                "update_s": 3 * SPENT["update"],
                "end_s": 0.0,
            }
        )
        assert sum(window.spent.model_dump().values()) == pytest.approx(window.wall_s)


def window_on_a_gpu(monkeypatch, loading_s: float, waits: bool):
    """Return the window of three steps, 0.2 s of computing each; `waits`: the loader does, too."""
    gpu = Timeline(monkeypatch)
    (rank,) = ThreadGroup(1).run(lambda rank: rank)
    rank.device = GPU
    clock, network = make_clock(rank), Planted(RankTime())

    def data():
        for step in range(3):
            if waits:
                gpu.wait()
            gpu.host += loading_s
            yield step

    clock.start()
    with marking_backward(clock, rank, network):
        for _ in clock.batches(data()):
            gpu.launch(0.2)
            network(0.0).sum().backward()
            gpu.launch(0.1)
            clock.gradients_averaged()
            gpu.launch(0.05)
            clock.step_done()
    return clock.stop()


@pytest.mark.parametrize(
    ("loading_s", "waits", "start_s", "data_s"),
    [
        (0.0, True, 0.0, 0.0),  # the host waits, for a device that is busy all the time
        (0.0, False, 0.0, 0.0),
        (0.4, False, 0.4, 2 * 0.05),  # 0.35 s of it while the device computes
        (0.4, True, 0.4, 2 * 0.4),  # nothing is loaded while it does
    ],
)
def test_on_a_gpu_waiting_for_data_is_that_of_the_device(
    monkeypatch, loading_s, waits, start_s, data_s
):
    window = window_on_a_gpu(monkeypatch, loading_s, waits)
    found, near = window.spent, partial(pytest.approx, abs=1e-9)
    assert (found.start_s, found.data_s) == (near(start_s), near(data_s))
    assert window.data_s == near(start_s + data_s)
    assert (found.compute_s, found.transfer_s) == (near(0.6), near(0.3))
    assert (found.update_s, found.end_s, found.waiting_s) == (near(0.15), near(0), near(0))
    assert sum(found.model_dump().values()) == near(window.wall_s)
    assert window.wall_s == near(3 * 0.35 + start_s + data_s)


def test_a_window_without_gradients_says_nothing_of_them():
    def evaluate(rank, clock):
        for _ in clock.batches(iter(range(3))):
            clock.step_done()

    (window,) = window_of(ThreadGroup(1), evaluate)
    assert window.spent is None


def test_time_is_summed_within_a_step_and_an_unfinished_one_is_left_out():
    phases = ["data", "compute", "data", "compute", "communication", "update", "data"]
    table = by_step(phases, np.arange(1.0, 8.0))
    assert table.tolist() == [[1 + 3, 2 + 4, 5, 6]]


def test_a_profiler_sees_the_marks_only_if_it_should(told):
    def names(annotate: bool) -> set[str]:
        (rank,) = ThreadGroup(1).run(lambda rank: rank)
        with torch.profiler.profile() as profiler:
            clock = make_clock(rank, annotate)
            clock.start()
            train(rank, clock, told, 1)
            clock.stop()
        return {event.name for event in profiler.events() if event.name.startswith(MARK)}

    assert names(True) == {MARK + part for part in ("data", "compute", "communication", "update")}
    assert names(False) == set()
