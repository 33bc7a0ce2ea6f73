"""Some of the faults of `benchmarks/faults`, done to real runs: nothing is left or lost."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faults.__main__ import play
from benchmarks.faults.kinds import Fault
from benchmarks.faults.world import World

FAULTS = [
    Fault("signal", "rank 1", "KILL", "training"),
    Fault("signal", "leader", "KILL", "set-up"),
    Fault("signal", "kernel", "KILL", "warm-up"),
    Fault("signal", "loader", "KILL", "training"),
    Fault("signal", "rank 0", "STOP and CONT", "warm-up"),
    Fault("signal", "server", "KILL", "evaluation"),
    Fault("signal", "study", "TERM", "training"),
    Fault("signal", "study", "KILL", "evaluation"),
    Fault("signal", "study", "INT", "start"),
    Fault("writer", "", "same study", "training"),
    Fault("writer", "", "other study", "warm-up"),
    Fault("read-only", "results", "read-only", "training"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, as sockets need it."""
    place = Path(tempfile.mkdtemp(prefix="ddl-f", dir="/tmp"))
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(900)
@pytest.mark.extended
def test_a_dozen_faults_leave_nothing_behind_and_lose_nothing(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.faults.world.RUNS", 6)
    with World(folder) as world:
        play(world, FAULTS, deadline=float("inf"))
    assert world.found == []
    assert len(world.done) >= len(FAULTS) - 3  # a phase of tenths of a second may be missed
    assert world.finished
