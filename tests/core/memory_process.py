"""A process that takes 64 MiB and gives them back, and prints what `Memory` says of that.

In a process of its own nobody else frees anything meanwhile; and memory asked of the system itself,
not of the allocator, is new for certain: the allocator may hold a piece that was never given back.
"""

import json
import sys
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap

from ddl_core.config import RunSpec
from ddl_core.device import PeakMemory
from ddl_core.strategies.base import Single

TAKEN = 64 * 2**20


def main() -> None:
    """Print bytes above those of an idle process, by when the memory was taken."""
    strategy = Single(RunSpec(device="cpu"))
    watched = PeakMemory(strategy)
    watched.begin()
    idle = watched.peak() or 0
    _take().close()
    since = watched.peak() or 0
    watched.begin()
    before = watched.peak() or 0
    kept = _take()
    of_others = PeakMemory(strategy)
    of_others.begin()
    there = of_others.peak() or 0
    kept.close()
    grown = {"since": since - idle, "before": before - idle, "there": there}
    json.dump(grown, sys.stdout)


def _take() -> mmap:
    taken = mmap(-1, TAKEN, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    for place in range(0, TAKEN, PAGESIZE):  # only a page that is written to is taken
        taken[place] = 1
    return taken


if __name__ == "__main__":
    main()
