"""What a made set holds, and what an unfinished one holds already.

``manifest.json`` tells it file by file. While images are made, ``manifest.partial.jsonl`` has the
plan and then one line per finished image, and ``shards.jsonl`` the same of a conversion's shards:
so what was interrupted continues.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self, TextIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddl_core.datasets.photos import CLASSES, Source
from ddl_core.errors import DataError
from ddl_core.records.storage import replacing
from ddl_core.spec.gate import require_file

MANIFEST = "manifest.json"
FORMAT = "ddl-sample"

JOURNAL = "manifest.partial.jsonl"

SHARD_LOG = "shards.jsonl"


class FileEntry(BaseModel):
    """One image file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    class_name: str
    bytes: int
    width: int
    height: int
    sha256: str


class SamplePlan(BaseModel):
    """What was asked for, and what it is made with: the same plan gives the same bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["ddl-sample"] = "ddl-sample"
    format_version: Literal[1] = 1
    seed: int
    train_per_class: int
    val_per_class: int
    # Unwritten where it is as it always was, so that a set made earlier has the same manifest.
    classes: int = Field(default=len(CLASSES), exclude_if=lambda count: count == len(CLASSES))
    packages: dict[str, str]
    sources: dict[str, Source]

    @property
    def request(self) -> str:
        """The settings that a user chose, as words."""
        return (
            f"seed {self.seed}, {self.train_per_class} training and "
            f"{self.val_per_class} validation images in each of {self.classes} classes"
        )

    @property
    def images(self) -> int:
        """Number of images of the finished set."""
        return self.classes * (self.train_per_class + self.val_per_class)


class Manifest(SamplePlan):
    """A finished set: `files` sorted by path."""

    files: tuple[FileEntry, ...]

    @property
    def bytes(self) -> int:
        """Size of all image files."""
        return sum(entry.bytes for entry in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 over all names and contents: equal means the same set."""
        lines = "".join(f"{entry.sha256}  {entry.path}\n" for entry in self.files)
        return hashlib.sha256(lines.encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write ``manifest.json`` so that it is whole or not there."""
        write_whole(folder / MANIFEST, self.model_dump_json(indent=1).encode() + b"\n", sync=True)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the manifest in `folder`; None without one, or if it is another program's.

        Raises
        ------
        DataError
            If it is ours, but damaged or of an unknown version.
        """
        path = folder / MANIFEST
        try:
            require_file(path)
            content = json.loads(path.read_bytes())
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                return None
            return cls.model_validate(content)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:  # not JSON, or a field missing or wrong
            reason = _first(error) if isinstance(error, ValidationError) else str(error)
            raise DataError(
                f"{path} is damaged, or of another version of this program ({reason}); "
                f"delete the folder and make it again: ddl data sample"
            ) from None


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def write_whole(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Write a file of a set under a temporary name, then rename it."""
    with replacing(path, sync=sync) as file:
        file.write(content)


def read_journal(folder: Path) -> tuple[SamplePlan | None, list[FileEntry]]:
    """Return the plan and the finished images; a line that was cut off ends the reading."""
    plan: SamplePlan | None = None
    entries: list[FileEntry] = []
    try:
        require_file(folder / JOURNAL)
        with (folder / JOURNAL).open(encoding="utf-8") as lines:
            plan = SamplePlan.model_validate_json(next(lines, ""))
            for line in lines:
                entries.append(FileEntry.model_validate_json(line))
    except (FileNotFoundError, ValidationError, UnicodeDecodeError):
        pass
    return plan, entries


def start_journal(folder: Path, plan: SamplePlan, entries: Iterable[FileEntry]) -> TextIO:
    """Begin a journal with what is already there, and return it open for more lines."""
    return _started(folder / JOURNAL, (plan, *entries))


def _started(path: Path, there: Iterable[BaseModel]) -> TextIO:
    lines = [model.model_dump_json() + "\n" for model in there]
    write_whole(path, "".join(lines).encode())
    return path.open("a", encoding="utf-8", buffering=1)


class SplitPlan(BaseModel):
    """What one split becomes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    images: int
    shards: int


class ConvertPlan(BaseModel):
    """What a conversion makes: the same plan gives the same bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["ddl-tfrecord"] = "ddl-tfrecord"
    format_version: Literal[1] = 1
    seed: int
    source: str  # SHA-256 over class names and file names
    splits: dict[str, SplitPlan]
    classes: tuple[str, ...]  # the first has label 1 in the records

    @property
    def request(self) -> str:
        """The settings that a user chose, as words."""
        shards = ", ".join(f"{plan.shards} {name}" for name, plan in self.splits.items())
        return f"seed {self.seed}, shards: {shards}, source {self.source[:12]}"


class ShardEntry(BaseModel):
    """One finished shard."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    split: str
    records: int
    bytes: int
    sha256: str


def read_shard_log(folder: Path) -> tuple[ConvertPlan | None, list[ShardEntry]]:
    """Return plan and finished shards; none for a folder of another origin.

    Raises
    ------
    DataError
        If the file is damaged. A last line that was cut off is no damage: its shard is unfinished.
    """
    path = folder / SHARD_LOG
    try:
        require_file(path)
        lines = path.read_bytes().splitlines(keepends=True)
    except (FileNotFoundError, NotADirectoryError):
        return None, []
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    whole = [line for line in lines if line.endswith(b"\n")]
    try:
        plan = ConvertPlan.model_validate_json(whole[0] if whole else b"")
        return plan, [ShardEntry.model_validate_json(line) for line in whole[1:]]
    except ValidationError:
        raise DataError(
            f"{path} is damaged, or of another version of this program; delete {folder} and make "
            "it again: ddl data convert"
        ) from None


def start_shard_log(folder: Path, plan: ConvertPlan, entries: Iterable[ShardEntry]) -> TextIO:
    """Begin the file with what is already there, and return it open for more lines."""
    return _started(folder / SHARD_LOG, (plan, *entries))
