"""Which commands of the user's may start, and as what: those that this call has named.

A record may come from anybody. So its command starts only where a process above named the same
command, from a study file or word for word. It starts as that process would start it: in its
folder, with its environment, and with none of the variables of our notebooks and ranks.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ddl_core.errors import LaunchError
from ddl_tools.processes import Passing, import_path, setting, users_environment

ALLOWED = "DDL_COMMANDS"  # their hashes, as those that this process starts see them
FOLDER = "DDL_COMMANDS_FOLDER"  # the current one of the call, in which they start
ENVIRONMENT = "DDL_COMMANDS_ENVIRONMENT"  # file with that of the call, in a job of the script


def variables(commands: Iterable[str | None], folder: Path) -> dict[str, str]:
    """Return the variables that let processes start some commands in a folder."""
    named = {_digest(one) for one in commands if one is not None}
    return {ALLOWED: " ".join(sorted(named)), FOLDER: str(folder)} if named else {}


@contextmanager
def allowing(commands: Iterable[str | None]) -> Iterator[None]:
    """Let processes that start in a ``with`` block start these commands, as this one would.

    A job's script has named its own.
    """
    named = variables(commands, Path.cwd())
    if not (named or ALLOWED in os.environ):
        yield
        return
    with Passing() as private:
        file = Path(private, "environment.json")
        # A script may import ddl_core from the checkout that measures it.
        own = {**users_environment(), "PYTHONPATH": import_path()}
        file.write_text(json.dumps(own), encoding="utf-8")
        with setting({**named, ENVIRONMENT: str(file)}):
            yield


def origin(command: str) -> tuple[Path, dict[str, str]]:
    """Return folder and environment of a command; `LaunchError` if nobody has named it."""
    if _digest(command) not in os.environ.get(ALLOWED, "").split():
        raise LaunchError(
            f"this record asks for a command that was not named in this call: {command!r:.200}; "
            "read it, and start it by its study file: ddl study run FILE.yaml",
            category="settings",
        )
    environment = json.loads(Path(os.environ[ENVIRONMENT]).read_text(encoding="utf-8"))
    return Path(os.environ[FOLDER]), environment


def _digest(command: str) -> str:
    return hashlib.sha256(command.encode()).hexdigest()
