"""Limits of this process: cores and their speed, memory, processes, and how often it met them.

Affinity, limits of the user and those of control groups (versions 1 and 2) hold together; of a
group, also those of all groups above it.
"""

import hashlib
import itertools
import math
import os
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

SPEED = "DDL_MACHINE_SPEED"  # set where this process, or the one that started it, knows `speed`
SPEED_S = 2.0
HASHED = bytes(2**20)

GROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def cores() -> float:
    """Return how many cores this process may use; a quota of CPU time may be a part of one."""
    quotas: list[tuple[float | None, float | None]] = []
    for folder in _groups("cpu"):
        older = folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"  # version 1
        quotas.append((_number(older[0]), _number(older[1])))
        with suppress(OSError, ValueError):
            newer = (folder / "cpu.max").read_text(encoding="utf-8").split()
            quotas.append((float(newer[0]), float(newer[1])))
    shares = [quota / period for quota, period in quotas if quota and period and quota > 0]
    return min([float(len(os.sched_getaffinity(0))), *shares])


def whole_cores() -> int:
    """Return how many ranks can have a core of their own; at least 1."""
    return max(1, math.floor(cores()))


def speed() -> float:
    """Return how fast the cores of this process hash together: SHA-256, MB/s.

    Two machines of one name, or one at two times, may differ: in clock, or in what others do there.
    """
    end = time.perf_counter() + SPEED_S

    def hashed(_: int) -> int:
        count = 0
        while time.perf_counter() < end:
            hashlib.sha256(HASHED)  # lets other threads run meanwhile
            count += 1
        return count

    workers = whole_cores()
    with ThreadPoolExecutor(workers) as pool:
        return sum(pool.map(hashed, range(workers))) * len(HASHED) / SPEED_S / 1e6


def known_speed() -> float | None:
    """Return what the process that measures found, if it did."""
    return float(os.environ[SPEED]) if SPEED in os.environ else None


def memory_bytes() -> int:
    """Return how much main memory this process and its group may use."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _memory())])


def free_memory_bytes() -> int:
    """Return how much of it is free now; what the system caches of files counts as free."""
    left = (max(0, limit - used) for limit, used in _memory())
    return min([psutil.virtual_memory().available, *left])


def processes() -> int | None:
    """Return how many processes and threads the user or the group may have; None if unlimited."""
    limits = [_number(folder / "pids.max") for folder in _groups("pids")]
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY and os.geteuid():  # root has no such limit
        limits.append(soft)
    return min((int(one) for one in limits if one is not None), default=None)


def throttled_s() -> float:
    """Return for how many seconds quotas of CPU time have stopped this process's groups."""
    counts = [_counts(folder / "cpu.stat") for folder in _groups("cpu")]
    older = sum(one.get("throttled_time", 0) for one in counts)
    return older / 1e9 + sum(one.get("throttled_usec", 0) for one in counts) / 1e6


def oom_kills() -> int:
    """Return how many processes the system has ended because memory ran out; 0 if unknown.

    Those of this process's control group, its job or session; else those of the whole machine.
    """
    for folder in itertools.islice(_groups("memory"), 1):
        for name in ("memory.events", "memory.oom_control"):
            counts = _counts(folder / name)
            if "oom_kill" in counts:
                return counts["oom_kill"]
    return _counts(PROC / "vmstat").get("oom_kill", 0)


def refused_forks() -> int:
    """Return how many processes and threads a limit of the groups has refused; 0 if unknown."""
    return sum(_counts(folder / "pids.events").get("max", 0) for folder in _groups("pids"))


def _memory() -> Iterator[tuple[int, int]]:
    """Yield limit and use of each group that has a limit, without cached files, in bytes."""
    for folder in _groups("memory"):
        cached = _counts(folder / "memory.stat")
        for limit, used, files in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most, now = _number(folder / limit), _number(folder / used)
            if most is not None and now is not None:
                yield int(most), max(0, int(now) - cached.get(files, 0))


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and of those above it, the innermost first."""
    with suppress(OSError, ValueError):
        for line in (PROC / "self" / "cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds and controller not in kinds.split(","):
                continue
            root = GROUPS / controller if kinds else GROUPS
            own = root / path.strip("/")
            # A container sees its own group at the root, and may be told a path that is not there.
            yield from (one for one in (own, *own.parents) if one.is_relative_to(root))


def _number(path: Path) -> float | None:
    """Return the number in a file; None where there is none, e.g. "max"."""
    try:
        return float(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _counts(path: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number in each line; none if it is absent."""
    try:
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
