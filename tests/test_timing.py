"""The clock: what it counts where, and that the slowest rank decides."""

import time

import pytest

from ddl_core.timing import Clock, cpu_seconds
from tests.groups import ThreadGroup


def slow_items(count: int, seconds: float):
    for item in range(count):
        time.sleep(seconds)
        yield item


def window_of(group: ThreadGroup, work):
    def timed(rank):
        clock = Clock(rank)
        clock.start()
        work(rank, clock)
        return clock.stop()

    return group.run(timed)


def test_the_slowest_rank_decides_and_all_ranks_agree():
    def work(rank, clock):
        time.sleep(0.4 if rank.rank == 1 else 0.0)
        clock.step_done()

    first, second = window_of(ThreadGroup(2), work)
    assert first.wall_s == second.wall_s >= 0.4
    assert first.rank_wall_s_max >= 0.4
    assert first.rank_wall_s_min < 0.4
    assert first.step_s_median >= 0.4


def test_waiting_for_data_is_inside_the_wall_time_and_apart():
    def work(rank, clock):
        for _ in clock.batches(slow_items(3, 0.1 if rank.rank == 0 else 0.0)):
            clock.step_done()

    window, _ = window_of(ThreadGroup(2), work)
    assert 0.3 <= window.data_s <= window.wall_s


def test_computing_is_not_waiting_for_data():
    def work(rank, clock):
        for _ in clock.batches(iter(range(3))):
            time.sleep(0.1)
            clock.step_done()

    (window,) = window_of(ThreadGroup(1), work)
    assert window.wall_s >= 0.3
    assert window.data_s < 0.1


def test_what_happens_before_and_after_is_not_counted():
    def timed(rank):
        clock = Clock(rank)
        time.sleep(0.5)
        clock.start()
        clock.step_done()
        window = clock.stop()
        time.sleep(0.1)
        return window

    (window,) = ThreadGroup(1).run(timed)
    assert window.wall_s < 0.5


def test_a_window_without_steps_has_no_step_time():
    (window,) = window_of(ThreadGroup(1), lambda rank, clock: None)
    assert window.step_s_median is None
    assert window.step_s_p95 is None


def test_percentiles_are_of_steps():
    def work(rank, clock):
        for seconds in (0.0, 0.0, 0.0, 0.3):
            time.sleep(seconds)
            clock.step_done()

    (window,) = window_of(ThreadGroup(1), work)
    assert window.step_s_median < 0.1
    assert window.step_s_p95 > 0.1


def test_cpu_time_counts_work_and_not_sleep():
    before = cpu_seconds()
    time.sleep(0.3)
    assert cpu_seconds() - before < 0.3
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    assert cpu_seconds() - before == pytest.approx(0.2, abs=0.15)
