"""The memory of a rank on the CPU: what is above the beginning, and only since it was asked for."""

import json
import subprocess
import sys

import pytest

from ddl_core import device as memory
from ddl_core.config import RunSpec
from ddl_core.device import PeakMemory
from ddl_core.strategies.base import Single
from ddl_tools.records.paths import PROJECT
from tests.core.memory_process import TAKEN

pytestmark = pytest.mark.skipif(not memory.STATUS.exists(), reason="only Linux tells")

MIB = 2**20


@pytest.fixture(scope="module")
def grown() -> dict[str, int]:
    """Bytes that 64 MiB added, by when they were taken."""
    command = [sys.executable, "-m", "tests.core.memory_process"]
    done = subprocess.run(
        command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout)


def test_what_was_freed_again_counts(grown) -> None:
    assert abs(grown["since"] - TAKEN) < 8 * MIB


def test_what_was_freed_before_it_began_does_not_count(grown) -> None:
    assert grown["before"] < 8 * MIB


def test_what_was_there_before_the_network_does_not_count(grown) -> None:
    assert grown["there"] < 8 * MIB


def test_a_system_that_does_not_tell_files_apart_tells_nothing(monkeypatch, tmp_path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t  1000 kB\nVmRSS:\t  900 kB\n")
    monkeypatch.setattr(memory, "STATUS", status)
    watched = PeakMemory(Single(RunSpec(device="cpu")))
    watched.begin()
    assert watched.peak() is None


def test_a_system_that_forgets_no_peak_tells_nothing(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(memory, "CLEAR", tmp_path / "none" / "clear_refs")
    watched = PeakMemory(Single(RunSpec(device="cpu")))
    watched.begin()
    assert watched.peak() is None
