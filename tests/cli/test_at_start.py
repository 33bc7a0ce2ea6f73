"""An interrupt while the command is still being imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddl_core.processes import HOME

# What is imported first of all: it interrupts, as Ctrl-C would.
INTERRUPTING = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(5)
"""


# As in a terminal: whom a shell starts in the background has it ignored, and keeps it so.
IN_FRONT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "


@pytest.mark.parametrize("module", ["click", "pydantic"])
def test_it_ends_the_command_and_prints_nothing(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(INTERRUPTING)
    done = subprocess.run(
        [sys.executable, "-c", IN_FRONT + "from ddl_core.cli import main; main(['--help'])"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HOME)])},
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_afterwards_an_interrupt_is_an_exception() -> None:
    code = IN_FRONT + "import ddl_core.cli; print(signal.getsignal(signal.SIGINT).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "default_int_handler"
