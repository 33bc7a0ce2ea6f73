"""Files written whole and read strictly."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ddl_core.errors import RecordError
from ddl_core.files import cannot_write, describe, replacing

Record = TypeVar("Record", bound=BaseModel)


class Strict(BaseModel):
    """What all records are: an unknown field is an error, and so is what is no finite number."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def now() -> str:
    """Return the UTC time, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_atomically(path: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Replace `path` by `content`, so that it is never seen half written; `sync` as `replacing`.

    Raises
    ------
    RecordError
        If the folder cannot be written or the disk is full. The old content is then untouched.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, sync=sync) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise cannot_write(path, error) from error


def read_text(path: Path, remedy: str = "") -> str:
    """Read a file of a record; the error for a missing one carries `remedy`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}", remedy=remedy) from None
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is not UTF-8 text: {error}") from None


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """Read a file that holds a JSON object; `remedy` as `read_text`."""
    try:
        content = json.loads(read_text(path, remedy))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise RecordError(f"{path} holds {type(content).__name__}, not an object")
    return content


def read_versioned(path: Path, model: type[Record], kind: str, version: int, remedy: str) -> Record:
    """Read a record of another `kind` strictly; its field ``<kind>_version`` must be `version`.

    Raises
    ------
    RecordError
        If it is missing (then with a `remedy`), not JSON, of another version, or has a wrong field.
    """
    content = read_json(path, remedy)
    found = content.get(f"{kind}_version")
    if found != version:
        raise RecordError(f"{path} has {kind} version {found!r}; this code reads {version}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise RecordError(f"{path} is no valid {kind}:\n{describe(error, model)}") from None
