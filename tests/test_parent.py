"""A process ends with its parent, also if that was gone before it asked."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ORPHAN = """
import os, sys, time
from ddl_core.system import die_with_parent
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.01)
    die_with_parent(parent)
    open(sys.argv[1], "w").write("survived")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_child_whose_parent_was_gone_before_ends_too(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    reading, writing = os.pipe()  # held by the child too: it is over when the pipe is closed
    process = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path / "mark")],
        env={**os.environ, "PYTHONPATH": str(root)},
        pass_fds=[writing],
    )
    os.close(writing)
    assert process.wait(timeout=60) == 0
    os.set_blocking(reading, False)
    end = time.monotonic() + 30
    while True:
        try:
            assert os.read(reading, 1) == b""
            break
        except BlockingIOError:
            assert time.monotonic() < end, "the child is still there"
            time.sleep(0.01)
    os.close(reading)
    assert not (tmp_path / "mark").exists()
