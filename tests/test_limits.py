"""Limits of cores, memory and processes: control groups of both versions, and of those above."""

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ddl_tools import limits

Put = Callable[[str, str], None]
NEWER, OLDER = "0::/job/step\n", "1:name=systemd:/x\n4:cpu,cpuacct:/job/step\n8:pids:/job/step\n"
GIB = 2**30


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Write a file of this process or of its groups, by a path below their folder."""
    monkeypatch.setattr(limits, "PROC", tmp_path / "proc")
    monkeypatch.setattr(limits, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


def test_a_machine_without_groups_has_its_cores_and_memory(put: Put) -> None:
    memory = psutil.virtual_memory().total
    assert (limits.cores(), limits.whole_cores(), limits.memory_bytes()) == (8, 8, memory)
    assert (limits.throttled_s(), limits.oom_kills(), limits.refused_forks()) == (0, 0, 0)


@pytest.mark.parametrize(
    ("quota", "period", "cores", "whole"),
    [("max", "100000", 8, 8), ("50000", "100000", 0.5, 1), ("250000", "100000", 2.5, 2)],
)
@pytest.mark.parametrize("above", [False, True])
def test_a_quota_of_the_group_or_one_above_limits_the_cores(
    put: Put, quota: str, period: str, cores: float, whole: int, above: bool
) -> None:
    put("proc/self/cgroup", NEWER)
    put(f"groups/job/{'' if above else 'step/'}cpu.max", f"{quota} {period}\n")
    assert (limits.cores(), limits.whole_cores()) == (cores, whole)


def test_a_quota_of_version_1_limits_the_cores(put: Put) -> None:
    put("proc/self/cgroup", OLDER)
    put("groups/cpu/cpu.cfs_quota_us", "-1\n")
    put("groups/cpu/cpu.cfs_period_us", "100000\n")
    assert limits.cores() == 8
    put("groups/cpu/job/cpu.cfs_quota_us", "150000\n")
    put("groups/cpu/job/cpu.cfs_period_us", "100000\n")
    assert limits.cores() == 1.5


def test_a_container_sees_its_group_at_the_root(put: Put) -> None:
    """Without a namespace of its own for groups it reads the path that its machine knows."""
    put("proc/self/cgroup", "0::/../../docker/abc\n")
    put("groups/cpu.max", "100000 100000\n")
    assert limits.cores() == 1


def test_memory_of_a_group_is_what_it_may_use(put: Put) -> None:
    put("proc/self/cgroup", NEWER)
    put("groups/job/memory.max", "max\n")
    put("groups/job/memory.current", f"{GIB}\n")
    assert limits.memory_bytes() == psutil.virtual_memory().total
    put("groups/job/step/memory.max", f"{GIB}\n")
    put("groups/job/step/memory.current", f"{GIB // 2}\n")
    put("groups/job/step/memory.stat", f"anon 5\ninactive_file {GIB // 4}\n")
    assert limits.memory_bytes() == GIB
    assert limits.free_memory_bytes() == GIB - GIB // 2 + GIB // 4


def test_memory_of_version_1_is_what_it_may_use(put: Put) -> None:
    put("proc/self/cgroup", "4:memory:/job\n0::/\n")
    put("groups/memory/memory.limit_in_bytes", "9223372036854771712\n")
    put("groups/memory/memory.usage_in_bytes", "5\n")
    assert limits.memory_bytes() == psutil.virtual_memory().total
    put("groups/memory/job/memory.limit_in_bytes", f"{GIB}\n")
    put("groups/memory/job/memory.usage_in_bytes", f"{GIB}\n")
    assert (limits.memory_bytes(), limits.free_memory_bytes()) == (GIB, 0)


@pytest.mark.parametrize("lines", [NEWER, OLDER])
def test_processes_are_limited_and_refused_by_the_group_or_one_above(put: Put, lines: str) -> None:
    put("proc/self/cgroup", lines)
    folder = "groups/pids/job" if lines == OLDER else "groups/job"
    put(f"{folder}/pids.max", "50\n")
    put(f"{folder}/step/pids.max", "max\n")
    put(f"{folder}/pids.events", "max 3\n")
    put(f"{folder}/step/pids.events", "max 2\n")
    put("pids.events", "max 100\n")  # outside
    assert limits.processes() == 50
    assert limits.refused_forks() == 5


def test_seconds_without_cores_are_those_of_all_groups(put: Put) -> None:
    put("proc/self/cgroup", f"{NEWER}{OLDER}")
    put("groups/job/step/cpu.stat", "nr_throttled 5\nthrottled_usec 1500000\n")
    put("groups/cpu/job/cpu.stat", "nr_throttled 5\nthrottled_time 2000000000\n")
    assert limits.throttled_s() == pytest.approx(3.5)


def test_only_victims_of_our_own_group_are_counted(put: Put) -> None:
    put("proc/vmstat", "nr_free_pages 5\noom_kill 7\n")
    assert limits.oom_kills() == 7  # no groups: all that is known
    put("proc/self/cgroup", "1:name=systemd:/x\n0::/job/step\n")
    put("groups/job/step/memory.events", "oom 3\noom_kill 2\noom_group_kill 0\n")
    assert limits.oom_kills() == 2


def test_victims_of_a_group_of_version_1_are_counted(put: Put) -> None:
    put("proc/vmstat", "oom_kill 7\n")
    put("proc/self/cgroup", "4:memory:/job\n0::/\n")
    put("groups/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert limits.oom_kills() == 2
