"""``manifest.json``: what a made image folder holds, file by file."""

import hashlib
import json
import os
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddl_core.datasets.photos import CLASSES, Source
from ddl_core.errors import DataError

MANIFEST = "manifest.json"
FORMAT = "ddl-sample"


class FileEntry(BaseModel):
    """One image file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    class_name: str
    bytes: int
    width: int
    height: int
    sha256: str


class Plan(BaseModel):
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


class Manifest(Plan):
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
            content = json.loads(path.read_bytes())
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                return None
            return cls.model_validate(content)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:  # not JSON, or a field that is missing, unknown or wrong
            reason = _first(error) if isinstance(error, ValidationError) else str(error)
            raise DataError(
                f"{path} is damaged, or of another version of this program ({reason}); "
                f"delete the folder and make it again: ddl data sample"
            ) from None


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def write_whole(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Write a file under a temporary name, then rename it; `sync` makes it outlive a power cut."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
