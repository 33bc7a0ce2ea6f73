"""Atomic writing and strict reading of the files of records."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from ddl_core.errors import RecordError
from ddl_core.files import cannot_write, describe, replacing
from ddl_core.retired import FIELDS

Record = TypeVar("Record", bound=BaseModel)


class Strict(BaseModel):
    """Base of all records: unknown fields and numbers that are not finite are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    _retired: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_retired(cls, content: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        names = FIELDS.get(cls.__name__, ())
        if not names or not isinstance(content, dict):
            return handler(content)
        record = handler({name: content[name] for name in content if name not in names})
        record._retired = {name: content[name] for name in names if name in content}
        return record

    @property
    def retired(self) -> dict[str, Any]:
        """Fields of an old record that new ones do not have, with the values that were written."""
        return self._retired


def now() -> str:
    """Return the UTC time, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_atomically(path: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Replace `path` by `content` at once; `sync` as in `replacing`.

    Where the folder cannot be written or the disk is full, `RecordError`, and the file stays.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, sync=sync) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise cannot_write(path, error) from error


def read_text(path: Path, remedy: str = "") -> str:
    """Read a file of a record; `remedy` belongs to the error for a missing one."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}", remedy=remedy) from None
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is not UTF-8 text: {error}") from None


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """Read a file that holds a JSON object; `remedy` as in `read_text`."""
    try:
        content = json.loads(read_text(path, remedy))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise RecordError(f"{path} holds {type(content).__name__}, not an object")
    return content


def validated(
    path: Path, content: dict[str, Any], model: type[Record], kind: str, *versions: int
) -> Record:
    """Return the record in the `content` of a file; its ``<kind>_version`` is one of `versions`."""
    found = content.get(f"{kind}_version")
    if found not in versions:
        known = " and ".join(map(str, versions))
        raise RecordError(f"{path} has {kind} version {found!r}; this code reads {known}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise RecordError(f"{path} is not a valid record:\n{describe(error, model)}") from None
