"""Atomic writing and strict reading of the files of records."""

import os
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from ddl_core.errors import RecordError
from ddl_core.files import (
    cannot_write,
    describe,
    open_plain,
    or_elsewhere,
    read_plain,
    refuse_links,
    refuse_odd_files,
    replacing,
)
from ddl_core.retired import FIELDS
from ddl_tools.visible import visible

MOST_RECORD = 10_000_000  # bytes of a file that is read whole
MOST_LINES = 100_000_000  # bytes of a file of lines; GitHub takes no larger one

Record = TypeVar("Record", bound=BaseModel)

MOST = 2**63 - 1  # a larger number fits into no table
LONGEST_TEXT, LONGEST_LINE = 100_000, 10_000  # characters


def as_line(text: str) -> str:
    """Return a text in one line: a space for each line break, the rest as `visible` shows it."""
    if text.isascii() and text.isprintable():  # nearly all: each text of a record comes here
        return text
    return visible("".join(" " if one.isspace() else one for one in text))


# Every field of a record has one of these types, or narrower limits of its own.
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Line = Annotated[str, Field(max_length=LONGEST_LINE), AfterValidator(as_line)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Index = Annotated[int, Field(ge=0, lt=10**6)]  # of an attempt, an epoch, a rank
Number = Annotated[float, Field(ge=-1e60, le=1e60, allow_inf_nan=False)]
Duration = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]


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
        refuse_links(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, sync=sync) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise cannot_write(path, error) from error


def require_plain(folder: Path) -> None:
    """Refuse a folder of a run that holds what its ranks would write through, or wait for."""
    try:
        refuse_odd_files(folder)
    except OSError as error:
        raise cannot_write(folder, error) from None


def require_ours(
    path: Path, begins: str | None, *, overwrite: bool = False, remedy: str = ""
) -> None:
    """Refuse to replace a file unless it begins as one that this project wrote, if any does.

    If the user says `overwrite`, any plain file may be replaced. `remedy` says what to do, by
    default to choose another place.
    """
    if not os.path.lexists(path):
        return
    own = (begins or "").encode()
    try:
        with open_plain(path) as file:
            found = file.read(len(own))
    except OSError as error:
        raise cannot_write(path, error) from None
    if not overwrite and (begins is None or found != own):
        raise RecordError(
            f"{path} was not written by `ddl`, or not by this command, so it stays; "
            + (f"move it away, or {remedy}" if remedy else or_elsewhere("move it away"))
        )


def read_bytes(path: Path, remedy: str = "", most: int = MOST_RECORD) -> bytes:
    """Read a file of a record; `remedy` belongs to the error for a missing one."""
    try:
        return read_plain(path, most)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}", remedy=remedy) from None


def read_text(path: Path, remedy: str = "", most: int = MOST_RECORD) -> str:
    """Read a text file of a record; as `read_bytes`."""
    try:
        return read_bytes(path, remedy, most).decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is not UTF-8 text: {error}") from None


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """Read a file that holds a JSON object; `remedy` as in `read_text`."""
    try:
        content = from_json(read_text(path, remedy))
    except ValueError as error:
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
    return parsed(path, content, model, " is not a valid record")


def parsed(path: Path, content: dict[str, Any], model: type[Record], fault: str = "") -> Record:
    """Return the record in the `content` of a file or a line; `RecordError` with its faults."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise RecordError(f"{path}{fault}:\n{describe(error, model)}") from None
    except Exception as error:  # of a check that meets what it does not expect
        raise RecordError(f"{path}{fault}: {unexpected(error)}") from None


def unexpected(error: Exception) -> str:
    """Return the class and the text of an unexpected error, in one line."""
    return f"{type(error).__name__}: {shorten(str(error), 200, placeholder=' ...')}"
