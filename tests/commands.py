"""Commands in processes of their own, and a checkout with programs that stand in for others."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ddl_tools.records.paths import PROJECT


def run(
    *command: object, cwd: Path = PROJECT, env: Mapping[str, str] = os.environ, **variables: object
) -> "subprocess.CompletedProcess[str]":
    """Execute a command with these variables beside those of `env`."""
    words = [str(word) for word in command]
    added = {name: str(value) for name, value in variables.items()}
    return subprocess.run(words, cwd=cwd, env={**env, **added}, capture_output=True, text=True)


def output(*command: object, **options: object) -> str:
    """Return what a command prints; fail with all that it says where it fails."""
    done = run(*command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_checkout(root: Path) -> Path:
    """Copy the Makefile and its scripts."""
    shutil.copytree(PROJECT / "requirements", root / "requirements")
    shutil.copy(PROJECT / "Makefile", root)
    return root


def stub(program: Path, script: str) -> Path:
    """Write a program that stands in for another one."""
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(script)
    program.chmod(0o755)
    return program
