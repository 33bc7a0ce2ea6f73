"""Checks of the files of a run against one another.

A damaged record is named and not counted; its files stay as they are.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from textwrap import shorten

from ddl_core.errors import RecordError
from ddl_core.files import NAMED, is_there, shown, some
from ddl_core.origin import restored
from ddl_tools.records.ledger import Entry
from ddl_tools.records.paths import RunFiles, StudyFiles, Tree
from ddl_tools.records.profiling import read_profile
from ddl_tools.records.run import (
    EMULATION,
    EpochRecord,
    RunRecord,
    UnknownNameError,
    newest,
    parse_epoch,
    parse_record,
)
from ddl_tools.records.storage import MOST, unexpected
from ddl_tools.records.stored import Item, StoredRun, run_dirs, stored
from ddl_tools.study import NAMES, is_name

REMEDY = (
    f"restore the file (a published one with `{restored('data')}`), or remove the run and run the "
    "study again"
)
_EPOCHS = RunFiles(Path()).epochs.name  # in either form


@dataclass(frozen=True)
class Examined:
    """Contents of the folder of a run.

    `record` is None where it cannot be read or is another run's; `rows` are those that count, none
    of a damaged run. Each of `damages` is a line that begins with the name of the file.
    `is_unknown` says that the record is whole, but names a package that is not installed.
    """

    directory: Path
    record: RunRecord | None = None
    rows: list[EpochRecord] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)
    remedy: str = REMEDY
    is_unknown: bool = False

    @property
    def reason(self) -> str:
        """All damages and the remedy in one line."""
        return "; ".join([*self.damages, self.remedy])

    def lines(self) -> list[str]:
        """Return a line on each damage: where, what, and what to do."""
        mark = "/" if is_there(self.directory) else ": "  # a published run has no folder
        return [f"{self.directory}{mark}{damage}; {self.remedy}" for damage in self.damages]


def examine(directory: Path) -> Examined:
    """Read the files of a run and check them against one another; no error leaves it."""
    try:
        return _examine(directory)
    except Exception as error:  # whatever is in one record, the others are read
        return broken(directory, error)


def broken(directory: Path, error: Exception) -> Examined:
    """Return a run as damaged whose record has led to an unexpected error."""
    has_folder = is_there(directory)
    path = RunFiles(directory).record if has_folder else StudyFiles(directory.parent).runs
    return Examined(directory, damages=[f"{path.name}: cannot be used: {unexpected(error)}"])


def _examine(directory: Path) -> Examined:
    record: RunRecord | None = None
    try:
        run = stored(directory)
        item = run.record()
        record = parse_record(*item)
        if (directory.parent.name, directory.name) != (record.study, record.run_id):
            given = f"{directory.parent.name}/{directory.name}"
            own = f"{record.study}/{record.run_id}"
            text = (
                f"{item.where.name}: it is of run {record.run_id!r} of study {record.study!r}, in "
                "a folder of another name: a copied run would count twice; rename a moved one, "
                f"{given}, back to {own}"
            )
            return Examined(directory, damages=[text])
        lines = run.epochs()
        rows = [parse_epoch(*one) for one in lines]
        damages = [*_lines(run, record, lines, rows)]
        damages += [f"{run.profile_file}: {why}" for why in _profile(directory, run, record)]
        damages += [f"{item.where.name}: {why}" for why in _emulation(record)]
    except RecordError as error:
        text = error.detail.replace(f"{directory}/", "").replace(f"{directory.parent}/", "")
        text = shorten(text, 400, placeholder=" ...")
        unknown = isinstance(error, UnknownNameError)
        return Examined(directory, record, [], [text], error.remedy or REMEDY, unknown)
    return Examined(directory, record, [] if damages else newest(rows), damages)


def verify(tree: Tree, study: str) -> list[Examined]:
    """Examine every run of a study that has files in `tree`; without any, `RecordError`."""
    if not is_name(study):
        raise RecordError(f"{shown(study)} is no study: {NAMES}")
    folders = run_dirs(study, tree)
    if not folders:
        raise RecordError(
            f"no runs of study {study!r} in {tree.runs}; run `ddl study run {study}` first, "
            "or name the folder of its results with --results DIR"
        )
    return [examine(folder) for folder in folders]


def checked(entries: list[Entry]) -> list[Entry]:
    """Return a ledger in which the runs whose files are damaged have that state."""
    return [_checked(item) for item in entries]


def _checked(item: Entry) -> Entry:
    found = Examined(item.directory) if item.record is None else examine(item.directory)
    if not found.damages:
        return item
    return replace(item, state="damaged", reason=found.reason, category=None)


def _lines(
    run: StoredRun, record: RunRecord, lines: list[Item], rows: list[EpochRecord]
) -> Iterator[str]:
    """Yield the faults of the lines of a run, seen against its record."""
    if record.status == "completed" and (gap := run.epochs_gap):
        yield f"{_EPOCHS}: {gap}, but the run is completed"
        if not lines:
            return
    for (where, _), row in zip(lines, rows, strict=True):
        if not 0 <= row.attempt < len(record.attempts):
            text = f"attempt = {row.attempt}, but the record has {len(record.attempts)}"
            yield f"{where.name}: {text}"
        if row.epoch >= record.spec.epochs:
            text = f"epoch = {row.epoch}, but the run has {record.spec.epochs}, from 0"
            yield f"{where.name}: {text}"
    places = Counter((row.attempt, row.epoch, row.phase) for row in rows)
    if twice := [f"{place[2]} of epoch {place[1]}" for place, n in places.items() if n > 1]:
        yield f"{_EPOCHS}: holds more than once {some(twice)}"
    known = {(row.epoch, row.phase) for row in rows}
    missing = (place for place in _expected(record, rows) if place not in known)
    if first := [f"{phase} of epoch {epoch}" for epoch, phase in islice(missing, NAMED)]:
        yield f"{_EPOCHS}: lacks {some(first, more=sum(1 for _ in missing))}"
    if (images := sum(row.samples for row in rows)) > MOST:
        yield f"{_EPOCHS}: its epochs hold {images} images together; at most {MOST} are counted"


def _expected(record: RunRecord, rows: list[EpochRecord]) -> Iterator[tuple[int, str]]:
    """Yield the epochs and phases that must be there: all, or those before the last one begun."""
    spec = record.spec
    begun = max((row.epoch for row in rows), default=0)
    for epoch in range(spec.epochs if record.status == "completed" else min(begun, spec.epochs)):
        yield epoch, "train"
        if spec.work == "train" and spec.due(spec.eval_every, epoch):
            yield epoch, "eval"


def _emulation(record: RunRecord) -> Iterator[str]:
    has_facts = EMULATION in (record.system or {})
    if record.spec.simulated and record.status == "completed" and not has_facts:
        yield f"has no system.{EMULATION}, but the run is completed and was emulated"
    if has_facts and not record.spec.simulated:
        yield f"has system.{EMULATION}, but the run was not emulated"


def _profile(directory: Path, run: StoredRun, record: RunRecord) -> Iterator[str]:
    if record.status != "completed":
        return
    if run.profile() is not None:
        profile = read_profile(directory)
        if profile.run_id != record.run_id:
            yield f"it is of run {profile.run_id}"
    elif record.spec.profile_steps:
        yield "is missing, but the run is completed and was profiled"
