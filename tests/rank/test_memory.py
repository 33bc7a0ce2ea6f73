"""The peak memory of a rank on the CPU: above what it had, and since it was asked for."""

import json
import sys

import pytest

from ddl_core.config import RunSpec
from ddl_core.strategies.base import Single
from ddl_tools.rank import pytorch
from ddl_tools.rank.pytorch import PeakMemory
from tests.commands import output

pytestmark = pytest.mark.skipif(not pytorch.STATUS.exists(), reason="only Linux says it")

TAKEN = 64 * 2**20
MUCH = 8 * 2**20

# In a process of its own nothing else frees memory, and pages of the system itself are new.
PROCESS = f"""
import json
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from tests.rank.test_memory import PeakMemory, RunSpec, Single

def take():
    taken = mmap(-1, {TAKEN}, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    for place in range(0, {TAKEN}, PAGESIZE):
        taken[place] = 1
    return taken

def peak(of):
    return of.peak() or 0

strategy = Single(RunSpec(device="cpu"))
watched = PeakMemory(strategy)
watched.begin()
idle = peak(watched)
take().close()
since = peak(watched) - idle
watched.begin()
before = peak(watched) - idle
kept = take()
of_others = PeakMemory(strategy)
of_others.begin()
print(json.dumps([since, before, peak(of_others)]))
"""


def test_only_new_memory_since_the_beginning_counts() -> None:
    since, before, there = json.loads(output(sys.executable, "-c", PROCESS))
    assert abs(since - TAKEN) < MUCH
    assert before < MUCH
    assert there < MUCH


def test_a_system_that_resets_no_peak_tells_nothing(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(pytorch, "CLEAR", tmp_path / "none" / "clear_refs")
    watched = PeakMemory(Single(RunSpec(device="cpu")))
    watched.begin()
    assert watched.peak() is None
