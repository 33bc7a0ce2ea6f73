"""Small scripts in the place of SLURM's programs.

They record how they are called and answer what they are told to. They show what this project does
at that boundary, and nothing about SLURM.
"""

import shlex
import sys
from pathlib import Path

# Starts all tasks here, with the variables of their nodes; ends all when one ends badly, or when it
# is told to end.
SRUN = """
import itertools, os, signal, subprocess, sys
options = list(itertools.takewhile(lambda word: word.startswith("--"), sys.argv[1:]))
command = sys.argv[1 + len(options):]
def number(name):
    return int(next(word.split("=")[1] for word in options if word.startswith(f"--{name}=")))
tasks, per_node = number("ntasks"), number("ntasks-per-node")
def place(task):
    node, local = divmod(task, per_node)
    values = {"PROCID": task, "LOCALID": local, "NODEID": node, "NTASKS": tasks}
    return {f"SLURM_{name}": str(value) for name, value in values.items()}
running = [
    subprocess.Popen(command, env={**os.environ, **place(task)}) for task in range(tasks)
]
def stop(*_):
    for one in running:
        one.kill()
signal.signal(signal.SIGTERM, stop)
status = 0
for one in running:
    if one.wait():
        status = 1
        stop()
sys.exit(status)
"""


class StandIns:
    """A folder for PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def add(self, name: str, answer: str = "", *, error: str = "", status: int = 0) -> None:
        """Add a program that records its arguments, then answers."""
        self.script(
            name,
            f'#!/bin/sh\nprintf "%s\\n" "$*" >>{shlex.quote(str(self._calls(name)))}\n'
            f"printf %s {shlex.quote(answer)}\nprintf %s {shlex.quote(error)} >&2\nexit {status}\n",
        )

    def script(self, name: str, text: str) -> None:
        """Add a program."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def python(self, name: str, code: str) -> None:
        """Add a program in Python; its interpreter's path may contain a space."""
        command = shlex.join([sys.executable, "-c", code])
        self.script(name, f'#!/bin/sh\nexec {command} "$@"\n')

    def calls(self, name: str) -> list[str]:
        """Return the arguments of each call."""
        path = self._calls(name)
        return path.read_text().splitlines() if path.exists() else []

    def _calls(self, name: str) -> Path:
        return self.folder / f".{name}.calls"
