"""The Python of a library's ranks: each library but torch has an environment of its own.

``make tensorflow`` and the like build ``.venv-<library>`` in this checkout. A site that has the
library as a module names its interpreter instead: ``DDL_PYTHON_<LIBRARY>=/path/to/python``.
"""

import os
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from ddl_core import registry
from ddl_core.errors import LaunchError, NotInstalledError
from ddl_core.origin import IN_CLONE
from ddl_core.registry import COMMAND, FRAMEWORKS, STRATEGIES
from ddl_tools.records.paths import PROJECT

# What the ranks of every library import besides it: requirements/libraries/common.txt.
COMMON = ("numpy", "pillow", "psutil", "pydantic", "pyyaml")
_OURS = () if IN_CLONE else ("ddl-core",)  # a clone is on the path of all
OURS = ("torch", COMMAND)  # libraries whose ranks begin in this environment
PATIENCE_S = 120.0  # a first start from a parallel file system


def python_of(library: str) -> Path:
    """Return the interpreter of a library's ranks, without starting it.

    Links are not followed: what an environment's link points to has none of its packages.
    """
    if library in OURS:
        return Path(sys.executable)
    if named := os.environ.get(_variable(library)):
        python = Path(named).absolute()
        if python.is_file() and os.access(python, os.X_OK):
            return python
        raise LaunchError(
            f"{_variable(library)} = {named!r} is not an executable file; set it to a Python that "
            f"has {FRAMEWORKS[library].title}, or unset it and run `{FRAMEWORKS[library].install}`"
        )
    python = _environment(library) / "bin" / "python"
    if not python.exists():
        there = f"the environment {_environment(library).name}, which is not there"
        raise _lacking(library, f"framework {library!r} needs {there}")
    return python


def is_there(library: str) -> bool:
    """Say whether a library has an environment here, or a site names an interpreter for it."""
    named = library in OURS or os.environ.get(_variable(library))
    return bool(named) or _environment(library).exists()


def version(library: str, package: str) -> str | None:
    """Return the version of a package where a library's ranks run, None if it is not there."""
    found = metadata.distributions(name=package, path=_path(library))
    return next((one.version for one in found), None)


def require(library: str, strategy: str) -> None:
    """Refuse a library or its strategy if a package is not there, before anything starts."""
    if library == COMMAND:
        return None  # of its packages its own Python finds out
    if library == "torch":
        return registry.require("strategy", strategy)
    needed = [
        (f"framework {library!r}", FRAMEWORKS[library].packages),
        *((f"framework {library!r}", (name,)) for name in FRAMEWORKS[library].also),
        (f"strategy {strategy!r} of framework {library!r}", STRATEGIES[strategy].packages),
        *(("every rank", (name,)) for name in (*COMMON, *_OURS)),
    ]
    for who, packages in needed:
        if packages and not any(version(library, package) for package in packages):
            without = f"the package {packages[0]!r}, which {python_of(library)} does not have"
            raise _lacking(library, f"{who} needs {without}")


def _variable(library: str) -> str:
    return f"DDL_PYTHON_{library.upper()}"


def _environment(library: str) -> Path:
    return PROJECT / f".venv-{library}"


def _lacking(library: str, what: str) -> NotInstalledError:
    return NotInstalledError(
        f"{what}; run `{FRAMEWORKS[library].install}`, or name a Python that has it: "
        f"{_variable(library)}=/path/to/python"
    )


def _path(library: str) -> list[str]:
    """Return where a library's interpreter looks for packages."""
    if library in OURS:
        return sys.path
    python = python_of(library)
    if os.environ.get(_variable(library)):
        return _asked(python)
    return [str(place) for place in _environment(library).glob("lib/python*/site-packages")]


@cache
def _asked(python: Path) -> list[str]:
    """Ask an interpreter that this checkout has not made: its packages may lie anywhere."""
    code = "import sys; print(*filter(None, sys.path), sep='\\n')"  # '' is the current folder
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(f"{python} does not start as a Python: {error}") from error
    return done.stdout.splitlines()
