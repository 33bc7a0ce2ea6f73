"""``shards.jsonl``: what a conversion was asked for, then one line per finished shard."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TextIO

from pydantic import BaseModel, ConfigDict, ValidationError

from ddl_core.datasets.manifest import write_whole
from ddl_core.errors import DataError

SHARD_LOG = "shards.jsonl"


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
    lines = [model.model_dump_json() + "\n" for model in (plan, *entries)]
    write_whole(folder / SHARD_LOG, "".join(lines).encode())
    return (folder / SHARD_LOG).open("a", encoding="utf-8", buffering=1)
