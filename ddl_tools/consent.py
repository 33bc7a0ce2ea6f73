"""Which commands of the user's may start, and where: those of this call, in its folder.

A record may come from anybody. So its command starts only where a process above named the same
command, from a study file or word for word.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ddl_core.errors import LaunchError

ALLOWED = "DDL_COMMANDS"  # their hashes, as those that this process starts see them
FOLDER = "DDL_COMMANDS_FOLDER"  # the current one of the call, in which they start


def variables(commands: Iterable[str | None], folder: Path) -> dict[str, str]:
    """Return the variables that let processes start some commands in a folder."""
    named = {_digest(one) for one in commands if one is not None}
    return {ALLOWED: " ".join(sorted(named)), FOLDER: str(folder)} if named else {}


@contextmanager
def allowing(commands: Iterable[str | None]) -> Iterator[None]:
    """Let processes that start in a ``with`` block start these commands in the current folder."""
    with setting(variables(commands, Path.cwd())):
        yield


@contextmanager
def setting(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment in a ``with`` block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def folder_of(command: str) -> Path:
    """Return the folder in which a command starts; `LaunchError` if nobody has named it."""
    if _digest(command) not in os.environ.get(ALLOWED, "").split():
        raise LaunchError(
            f"this record asks for a command that was not named in this call: {command!r:.200}; "
            "read it, and start it by its study file: ddl study run FILE.yaml",
            category="settings",
        )
    return Path(os.environ.get(FOLDER, "."))


def _digest(command: str) -> str:
    return hashlib.sha256(command.encode()).hexdigest()
