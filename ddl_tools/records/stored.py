"""Stored runs: a folder each while they are measured, lines of files once they are published.

Both forms hold the same JSON. A published study, and one in an archive, has ``study.json``,
``runs.jsonl`` (a line per run), ``epochs.jsonl`` (a line per epoch, which begins with its
``run_id``) and ``profiles.jsonl`` (a line per profile). Readers name a run by its folder, a
published one by the folder that it would have.
"""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic_core import from_json, to_json

from ddl_core.errors import RecordError
from ddl_core.files import is_there, shown
from ddl_tools.records.paths import RunFiles, StudyFiles, Tree
from ddl_tools.records.storage import MOST_LINES, read_bytes, read_json, read_text

LONGEST_LINE = 1_000_000  # bytes
_RUN_ID = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_NAMED = re.compile(rb'"run_id": ?"(%s)"' % _RUN_ID.encode())


class Item(NamedTuple):
    """A JSON object, and the file, or its line, that holds it."""

    where: Path
    content: dict[str, Any]


class StoredRun(Protocol):
    """JSON of a run, not validated. A part that cannot be read raises `RecordError`."""

    @property
    def profile_file(self) -> str:
        """Name of the file that has the profile of the run."""

    def record(self) -> Item:
        """Return the record."""

    def epochs(self) -> list[Item]:
        """Return the finished lines of the epochs, without their ``run_id``."""

    def profile(self) -> Item | None:
        """Return the profile; None without."""

    @property
    def epochs_gap(self) -> str:
        """Fault of the lines that a run at work may have, and a completed one may not."""


class _FolderRun:
    """A run with files of its own."""

    def __init__(self, directory: Path) -> None:
        self.files = RunFiles(directory)
        self.profile_file = self.files.profile.name

    def record(self) -> Item:
        return Item(self.files.record, read_json(self.files.record))

    def epochs(self) -> list[Item]:
        path = self.files.epochs
        if not is_there(path):
            return []
        # The writer of an unfinished line was killed.
        *lines, _ = read_text(path, most=MOST_LINES).split("\n")
        return [_item(_line_of(path, number), line) for number, line in enumerate(lines, start=1)]

    def profile(self) -> Item | None:
        path = self.files.profile
        return Item(path, read_json(path)) if is_there(path) else None

    @property
    def epochs_gap(self) -> str:
        path = self.files.epochs
        if not is_there(path):
            return "is missing"
        content = read_text(path, most=MOST_LINES)
        return "its last line is cut" if content and not content.endswith("\n") else ""


@dataclass
class _PublishedRun:
    """A run in lines. `faults` are those of its lines, by the name of the file."""

    directory: Path
    items: dict[str, list[Item]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files = StudyFiles(self.directory.parent)
        self.profile_file, self.epochs_gap = self.files.profiles.name, ""

    def record(self) -> Item:
        found = self._one(self.files.runs)
        if found is None:
            raise RecordError(f"{self.files.runs}: has no line of the run")
        return found

    def epochs(self) -> list[Item]:
        return self._of(self.files.epochs)

    def profile(self) -> Item | None:
        return self._one(self.files.profiles)

    def _of(self, file: Path) -> list[Item]:
        if file.name in self.faults:
            raise RecordError(self.faults[file.name])
        return self.items.get(file.name, [])

    def _one(self, file: Path) -> Item | None:
        found = self._of(file)
        if len(found) > 1:
            raise RecordError(f"{found[1].where}: the run is there twice")
        return found[0] if found else None


def stored(directory: Path) -> StoredRun:
    """Return the run of a folder, or of the lines beside it."""
    folder, lines = _FolderRun(directory), _lines(directory.parent).get(directory.name)
    if lines is None or not folder.files.are_there():
        return lines or folder
    if values(folder) != values(lines):
        fault = f"{lines.files.runs}: has the run with other content than its folder"
        return _PublishedRun(directory, {}, {lines.files.runs.name: fault})
    return lines


def is_stored(directory: Path) -> bool:
    """Say whether there is a run, or what is left of one."""
    return RunFiles(directory).are_there() or directory.name in _lines(directory.parent)


def has_record(directory: Path) -> bool:
    """Say whether there is a record of a run, whole or not."""
    return is_there(RunFiles(directory).record) or _has_line(directory, StudyFiles(Path()).runs)


def has_profile(directory: Path) -> bool:
    """Say whether there is a profile of a run, whole or not."""
    return is_there(RunFiles(directory).profile) or _has_line(
        directory, StudyFiles(Path()).profiles
    )


def run_dirs(study: str, tree: Tree) -> list[Path]:
    """Return the folders that name the runs of a study, by name.

    A damaged line that names no run stands for one, as ``<file>, line <number>``.
    """
    folder = tree.study(study)
    return sorted({*tree.folders(study), *(folder / name for name in _lines(folder))})


def is_line(directory: Path) -> bool:
    """Say whether a folder of `run_dirs` stands for a damaged line."""
    return re.search(r"\.jsonl, line \d+$", directory.name) is not None


def values(run: StoredRun) -> bytes:
    """Return all values of a run; of two runs with the same values, the same bytes."""
    profile = run.profile()
    parts = [run.record().content, [one.content for one in run.epochs()]]
    return to_json([*parts, profile.content if profile else None])


def to_lines(directories: Iterable[Path]) -> dict[str, bytes]:
    """Return the lines of some runs by the name of their file; `RecordError` if one is too long."""
    names = StudyFiles(Path())
    lines: dict[str, list[bytes]] = {path.name: [] for path in names.lines}
    for directory in directories:
        run = stored(directory)
        profile = run.profile()
        epochs = [{"run_id": directory.name, **one.content} for one in run.epochs()]
        own = [run.record().content], epochs, [profile.content] if profile else []
        for path, contents in zip(names.lines, own, strict=True):
            new = list(map(to_json, contents))
            if any(len(line) > LONGEST_LINE for line in new):
                raise RecordError(f"{directory}: its line of {path.name} would be {_TOO_LONG}")
            lines[path.name] += new
    return {name: b"".join(line + b"\n" for line in lines[name]) for name in lines}


def without(content: bytes, run_ids: Container[str]) -> bytes:
    """Return the lines of a file that are of other runs."""
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    return b"".join(one + b"\n" for one in lines if _run_id(one) not in run_ids)


_TOO_LONG = f"longer than {LONGEST_LINE / 1e6:g} MB"


def _has_line(directory: Path, file: Path) -> bool:
    lines = _lines(directory.parent).get(directory.name)
    return lines is not None and file.name in {*lines.items, *lines.faults}


def _lines(folder: Path) -> Mapping[str, _PublishedRun]:
    """Return the runs in the lines of a study by name; none where it has no such file."""
    stamps = tuple(map(_stamp, StudyFiles(folder).lines))
    return _parsed(folder, stamps) if any(stamps) else {}


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes with a file; nothing where there is none."""
    try:
        found = path.stat()
    except OSError:
        return (0,) if is_there(path) else ()  # its reader says why
    return found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(maxsize=4)  # readers ask for the runs of a study one after the other
def _parsed(folder: Path, stamps: tuple[tuple[int, ...], ...]) -> Mapping[str, _PublishedRun]:
    runs: dict[str, _PublishedRun] = {}
    files = StudyFiles(folder)
    for path, stamp in zip(files.lines, stamps, strict=True):
        for number, line in enumerate(_split(path) if stamp else (), start=1):
            where = _line_of(path, number)
            name, fault = _run_id(line), ""
            try:
                item = _item(where, line)
                name = _run_of(item)
            except RecordError as error:
                fault = str(error)
            run = runs.setdefault(name or where.name, _PublishedRun(folder / (name or where.name)))
            if fault:
                run.faults.setdefault((path if name else files.runs).name, fault)
                continue
            if path == files.epochs:
                del item.content["run_id"]
            run.items.setdefault(path.name, []).append(item)
    return runs


def _split(path: Path) -> list[bytes]:
    lines = read_bytes(path, most=MOST_LINES).split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _line_of(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}, line {number}")


def _item(where: Path, line: bytes | str) -> Item:
    if len(line) > LONGEST_LINE:
        raise RecordError(f"{where} is {_TOO_LONG}")
    try:
        content = from_json(line)
    except ValueError as error:
        raise RecordError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise RecordError(f"{where} holds {type(content).__name__}, not an object")
    return Item(where, content)


def _run_of(item: Item) -> str:
    """Return the run that a line names; `RecordError` where that is no name."""
    name = item.content.get("run_id")
    if not isinstance(name, str) or not re.fullmatch(_RUN_ID, name):
        raise RecordError(f"{item.where}: run_id = {shown(name)} is no name of a run")
    return name


def _run_id(line: bytes) -> str:
    """Return the run that a line names, also of one that is no JSON; nothing without."""
    found = _NAMED.search(line)
    return found[1].decode() if found else ""
