"""Whether the files of a run hold together, and what to do where they do not.

A record is believed as a whole or not at all: its name follows from its spec, its lines are those
that such a run writes, and what they say is possible. What is damaged is named and not counted; the
files stay as they are, and other runs are none the worse for it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten

from ddl_core.errors import RecordError
from ddl_tools.records.ledger import Entry
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.profiling import read_profile
from ddl_tools.records.run import (
    EMULATION,
    MIGRATE,
    UNKNOWN,
    EpochRecord,
    RunRecord,
    newest,
    read_record,
    read_rows,
)

REMEDY = (
    "restore the file (a published one with `git checkout data`), or remove the run's folder and "
    "run the study again"
)
_MOST_NAMED = 4


@dataclass(frozen=True)
class Examined:
    """What the folder of a run holds.

    `record` is None where it cannot be read or is not this run's; `rows` are those that count, none
    of a damaged run. Each of `damages` is a line that begins with the name of the file.
    """

    directory: Path
    record: RunRecord | None = None
    rows: list[EpochRecord] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)

    @property
    def is_unknown(self) -> bool:
        """Whether it is whole, but names what is not installed here."""
        return any(UNKNOWN in reason for reason in self.damages)

    def told(self) -> list[str]:
        """Return a line on each damage: where, what, and what to do."""
        return [f"{self.directory}/{with_remedy(reason)}" for reason in self.damages]


def with_remedy(reason: str) -> str:
    """Return why a record is not read, and what to do; some reasons say so themselves."""
    return reason if UNKNOWN in reason or MIGRATE in reason else f"{reason}; {REMEDY}"


def examine(directory: Path) -> Examined:
    """Read the files of a run and check them against one another."""
    files = RunFiles(directory)
    record: RunRecord | None = None
    rows: list[EpochRecord] = []
    try:
        record = read_record(directory)
        if wrong := [f"{files.record.name}: {why}" for why in _identity(directory, record)]:
            return Examined(directory, damages=wrong)
        rows = read_rows(directory)
        wrong = [f"{files.epochs.name}: {why}" for why in _lines(files, record, rows)]
        wrong += [f"{files.profile.name}: {why}" for why in _profile(files, record)]
        wrong += [f"{files.record.name}: {why}" for why in _box(record)]
    except RecordError as error:
        wrong = [shorten(str(error).replace(f"{directory}/", ""), 400, placeholder=" ...")]
    return Examined(directory, record, [] if wrong else newest(rows), wrong)


def verify(tree: Tree, study: str) -> list[Examined]:
    """Examine every run of a study that has files in `tree`.

    Raises
    ------
    RecordError
        If there are none.
    """
    folders = tree.run_folders(study)
    if not folders:
        raise RecordError(
            f"no runs of study {study!r} in {tree.runs}; run `ddl study run {study}` first, "
            "or name the folder of its results with --results DIR"
        )
    return [examine(folder) for folder in folders]


def checked(entries: list[Entry]) -> list[Entry]:
    """Return a ledger in which a damaged run is not taken for what its record says."""
    found = []
    for item in entries:
        damages = [] if item.record is None else examine(item.directory).damages
        reason = with_remedy("; ".join(damages))
        found.append(
            replace(item, state="damaged", reason=reason, category=None) if damages else item
        )
    return found


def _identity(directory: Path, record: RunRecord) -> Iterator[str]:
    """Yield why a record is not that of its folder."""
    if (directory.parent.name, directory.name) != (record.study, record.run_id):
        yield (
            f"it is of run {record.run_id!r} of study {record.study!r}, in a folder of another "
            "name: a copied run would count twice"
        )


def _lines(files: RunFiles, record: RunRecord, rows: list[EpochRecord]) -> Iterator[str]:
    """Yield what is wrong with the lines of a run, seen against its record."""
    if record.status == "completed":
        if not files.epochs.exists():
            yield "is missing, but the run is completed"
            return
        if (content := files.epochs.read_bytes()) and not content.endswith(b"\n"):
            yield "its last line is cut, but the run is completed"
    for number, row in enumerate(rows, start=1):
        if reason := _impossible(row, record):
            yield f"line {number}: {reason}"
    places = Counter((row.attempt, row.epoch, row.phase) for row in rows)
    if twice := [f"{place[2]} of epoch {place[1]}" for place, n in places.items() if n > 1]:
        yield f"holds more than once {_named(twice)}"
    known = {(row.epoch, row.phase) for row in rows}
    if missing := [place for place in _expected(record, rows) if place not in known]:
        yield f"lacks {_named([f'{phase} of epoch {epoch}' for epoch, phase in missing])}"


def _named(places: list[str]) -> str:
    rest = len(places) - _MOST_NAMED
    return ", ".join(places[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _impossible(row: EpochRecord, record: RunRecord) -> str | None:
    """Return why no such run could have written this line."""
    if not 0 <= row.attempt < len(record.attempts):
        return f"attempt = {row.attempt}, but the record has {len(record.attempts)}"
    if row.epoch >= record.spec.epochs:
        return f"epoch = {row.epoch}, but the run has {record.spec.epochs}, from 0"
    return None


def _expected(record: RunRecord, rows: list[EpochRecord]) -> Iterator[tuple[int, str]]:
    """Yield the epochs and phases that must be there: all, or those before the last one begun."""
    spec = record.spec
    done = spec.epochs if record.status == "completed" else max((r.epoch for r in rows), default=0)
    for epoch in range(done):
        yield epoch, "train"
        if spec.work == "train" and spec.due(spec.eval_every, epoch):
            yield epoch, "eval"


def _box(record: RunRecord) -> Iterator[str]:
    """Yield what is wrong with what an emulated run tells of its box."""
    told = EMULATION in (record.system or {})
    if record.spec.emulated and record.status == "completed" and not told:
        yield "does not tell of its box, but the run is completed and was emulated"
    if told and not record.spec.emulated:
        yield "tells of a box, but the run was not emulated"


def _profile(files: RunFiles, record: RunRecord) -> Iterator[str]:
    """Yield what is wrong with the profile of a completed run."""
    if record.status != "completed":
        return
    if files.profile.exists():
        profile = read_profile(files.directory)
        if profile.run_id != record.run_id:
            yield f"it is of run {profile.run_id}"
    elif record.spec.profile_steps:
        yield "is missing, but the run is completed and was profiled"
