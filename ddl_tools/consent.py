"""Which commands of the user's may start: those that this call has named.

A record may come from anybody. So its command starts only where a process above named the same
command, from a study file or word for word.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ddl_core.errors import LaunchError

ALLOWED = "DDL_COMMANDS"  # their hashes, as those that this process starts see them


def variables(commands: Iterable[str | None]) -> dict[str, str]:
    """Return the variable that lets processes start some commands."""
    named = {_digest(one) for one in commands if one is not None}
    return {ALLOWED: " ".join(sorted(named))} if named else {}


@contextmanager
def allowing(commands: Iterable[str | None]) -> Iterator[None]:
    """Let processes that start in a ``with`` block start these commands."""
    before = os.environ.get(ALLOWED)
    os.environ.update(variables(commands))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(ALLOWED, None)
        else:
            os.environ[ALLOWED] = before


def check(command: str) -> None:
    """Raise `LaunchError` if nobody has named this command."""
    if _digest(command) not in os.environ.get(ALLOWED, "").split():
        raise LaunchError(
            f"this record asks for a command that was not named in this call: {command!r:.200}; "
            "read it, and start it by its study file: ddl study run FILE.yaml",
            category="settings",
        )


def _digest(command: str) -> str:
    return hashlib.sha256(command.encode()).hexdigest()
