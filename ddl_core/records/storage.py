"""Files written whole and read strictly."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ddl_core.errors import RecordError
from ddl_core.spec.run import describe

Record = TypeVar("Record", bound=BaseModel)


class Strict(BaseModel):
    """What all records are: an unknown field is an error, and so is what is no finite number."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def now() -> str:
    """Return the UTC time, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`, so that it is never seen half written.

    Raises
    ------
    RecordError
        If the folder cannot be written or the disk is full. The old content is then untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        _discard(temporary)
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> RecordError:
    """Return the error that says what to do when `path` cannot be written."""
    return RecordError(
        f"cannot write {path}: {error.strerror}; free some space or make the folder writable, "
        "or choose another place with --results DIR or DDL_RESULTS"
    )


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the folder itself is not writable: nothing was left there


def read_versioned(path: Path, model: type[Record], kind: str, version: int, remedy: str) -> Record:
    """Read a record of another `kind` strictly; its field ``<kind>_version`` must be `version`.

    Raises
    ------
    RecordError
        If it is missing (then with a `remedy`), not JSON, of another version, or has a wrong field.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}; {remedy}") from None
    except ValueError as error:
        raise RecordError(f"{path} is not JSON: {error}") from None
    found = content.get(f"{kind}_version") if isinstance(content, dict) else None
    if found != version:
        raise RecordError(f"{path} has {kind} version {found!r}; this code reads {version}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise RecordError(f"{path} is no valid {kind}:\n{describe(error, model)}") from None
