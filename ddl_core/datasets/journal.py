"""What an unfinished set already holds, so that an interrupted making continues.

``manifest.partial.jsonl``: first the plan, then one line per finished image. It is removed when the
manifest takes its place.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from pydantic import ValidationError

from ddl_core.datasets.manifest import FileEntry, Plan, write_whole

JOURNAL = "manifest.partial.jsonl"


def read_journal(folder: Path) -> tuple[Plan | None, list[FileEntry]]:
    """Return the plan and the finished images; a line that was cut off ends the reading."""
    plan: Plan | None = None
    entries: list[FileEntry] = []
    try:
        with (folder / JOURNAL).open(encoding="utf-8") as lines:
            plan = Plan.model_validate_json(next(lines, ""))
            for line in lines:
                entries.append(FileEntry.model_validate_json(line))
    except (FileNotFoundError, ValidationError, UnicodeDecodeError):
        pass
    return plan, entries


def start_journal(folder: Path, plan: Plan, entries: Iterable[FileEntry]) -> TextIO:
    """Begin a journal with what is already there, and return it open for more lines."""
    lines = [model.model_dump_json() + "\n" for model in (plan, *entries)]
    write_whole(folder / JOURNAL, "".join(lines).encode())
    return (folder / JOURNAL).open("a", encoding="utf-8", buffering=1)
