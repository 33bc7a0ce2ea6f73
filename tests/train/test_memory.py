"""The memory of a rank on the CPU: what is above the beginning, and only since it was asked for."""

import gc

import pytest
import torch

from ddl_core.spec.run import RunSpec
from ddl_core.train import memory
from ddl_core.train.memory import Memory
from ddl_core.train.strategies.single import Single

pytestmark = pytest.mark.skipif(not memory.STATUS.exists(), reason="only Linux tells")

MIB = 2**20
NUMBERS = 64 * MIB // 4


@pytest.fixture
def watched(monkeypatch) -> Memory:
    """All that this process has counts: what other tests free meanwhile must not hide a thing."""
    gc.collect()
    found = Memory(Single(RunSpec(device="cpu")))
    monkeypatch.setattr(found, "_before", 0)
    return found


def peak(watched: Memory) -> int:
    found = watched.peak()
    assert found is not None
    return found


def test_what_was_freed_again_counts(watched) -> None:
    watched.begin()
    idle = peak(watched)
    watched.begin()
    numbers = torch.ones(NUMBERS)
    del numbers
    assert 56 * MIB < peak(watched) - idle < 72 * MIB


def test_what_was_freed_before_it_began_does_not_count(watched) -> None:
    watched.begin()
    idle = peak(watched)
    numbers = torch.ones(NUMBERS)
    del numbers
    watched.begin()
    assert peak(watched) - idle < 8 * MIB


def test_what_was_there_before_the_network_does_not_count() -> None:
    numbers = torch.ones(NUMBERS)
    watched = Memory(Single(RunSpec(device="cpu")))
    watched.begin()
    assert (watched.peak() or 0) < 8 * MIB
    assert len(numbers) == NUMBERS


def test_a_system_that_forgets_no_peak_tells_nothing(watched, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(memory, "CLEAR", tmp_path / "none" / "clear_refs")
    watched.begin()
    assert watched.peak() is None
