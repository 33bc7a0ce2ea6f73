"""A copy of the Makefile and its scripts, and programs that stand in for those they call."""

import shutil
from pathlib import Path

from ddl_tools.records.paths import PROJECT


def copy_checkout(root: Path) -> Path:
    shutil.copytree(PROJECT / "requirements", root / "requirements")
    shutil.copy(PROJECT / "Makefile", root)
    return root


def stub(program: Path, script: str) -> Path:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(script)
    program.chmod(0o755)
    return program
