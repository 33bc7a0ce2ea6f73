"""The runs of a study: the state of each, its lock, its end, and ``study.json``.

``study.json`` is a copy of the study as it was planned last. No run needs it.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import Timeout
from pydantic import ValidationError

from ddl_core.config import RunSpec
from ddl_core.errors import Category, Interrupted, LaunchError, RecordError, SpecError
from ddl_core.files import acquire, cannot_write, is_held, read_plain, refuse_links, some
from ddl_core.registry import COMMAND
from ddl_tools.names import plural
from ddl_tools.records.failures import remedy
from ddl_tools.records.paths import STUDIES, RunFiles, Tree, portable
from ddl_tools.records.run import Failure, RunRecord, Status, read_record, write_record
from ddl_tools.records.storage import now, write_atomically
from ddl_tools.records.stored import is_line, is_stored, run_dirs
from ddl_tools.study import MOST_BYTES, Study

log = logging.getLogger(__name__)

State = Status | Literal["missing", "interrupted", "unknown", "damaged", "outdated"]

INTERRUPTED = Interrupted.__name__  # kind of failure of a run that was stopped
PATIENCE_S = 1.0  # `is_locked` holds a lock for a moment, too
TO_RUN: tuple[State, ...] = ("missing", "planned", "interrupted", "outdated")
TO_RETRY: tuple[State, ...] = (*TO_RUN, "failed", "damaged")
# Of which a queue has nothing to say.
SETTLED: tuple[State, ...] = ("completed", "damaged", "outdated")


@dataclass(frozen=True)
class Entry:
    """State of one run."""

    spec: RunSpec
    directory: Path
    state: State
    reason: str = ""
    job_id: str | None = None  # of the scheduler that it was last handed to
    category: Category | None = None  # of what ended it badly
    record: RunRecord | None = None  # where there is one that can be read
    queued: bool | None = None  # whether its job is in the scheduler's queue; None: not asked

    @property
    def is_lost(self) -> bool:
        """Whether its job has left the queue, and its record does not say why it ended."""
        unsaid = self.state == "interrupted" and self.job_id is not None and self.category is None
        return unsaid and self.queued is False


def read_study(name: str, tree: Tree) -> Study | None:
    """Return a study as it was planned; None where nobody kept it."""
    try:
        study = Study.model_validate_json(read_plain(tree.asked(name), MOST_BYTES))
    except (OSError, ValidationError):
        return None  # of an older version, or damaged: planning the study writes it anew
    return study if study.name == name else None


def find_study(name: str, tree: Tree) -> Study | None:
    """Return a study as it was planned, else as the project has it; None where nobody knows it."""
    return read_study(name, tree) or project_study(name)


def project_study(name: str) -> Study | None:
    """Return a study as the project's ``studies/`` has it; None where it has none."""
    try:
        return Study.load(STUDIES / f"{name}.yaml")
    except SpecError:
        return None


def write_study(study: Study, tree: Tree) -> None:
    """Write ``study.json``, where it does not say the same already."""
    if read_study(study.name, tree) != study:
        write_atomically(tree.asked(study.name), definition(study))


def definition(study: Study) -> bytes:
    """Return the content of ``study.json``."""
    return f"{study.model_dump_json(indent=1)}\n".encode()


def study_runs(study: Study, tree: Tree) -> list[RunSpec]:
    """Return the runs of a study: its grid, then what blocks needed beyond its repeats."""
    runs = study.expand()
    if study.interleave is not None:
        further = map(study.reference, itertools.count(study.repeats))
        there = {folder.name for folder in run_dirs(study.name, tree)}
        runs += itertools.takewhile(lambda spec: spec.run_id in there, further)
    return runs


def study_folders(name: str, tree: Tree) -> list[Path]:
    """Return the folders of the runs that a study has as it was planned last (`run_dirs`).

    All that are there where nobody kept the study, or where it cannot be planned here.
    """
    folders, study = run_dirs(name, tree), read_study(name, tree)
    if study is None:
        return folders
    try:
        own = {spec.run_id for spec in study_runs(study, tree)}
    except SpecError:  # it names what is not installed here
        return folders
    return [folder for folder in folders if folder.name in own or is_line(folder)]


def listing_fault(name: str, tree: Tree) -> str:
    """Return why the runs of a study, or of its second measurement, cannot be listed, or ""."""
    try:
        for one in (tree, tree.second()):
            run_dirs(name, one)
    except RecordError as error:
        return str(error)
    return ""


def listed(tree: Tree) -> list[str]:
    """Return the studies of a tree whose runs can be listed; the log names the others."""
    faults = {name: listing_fault(name, tree) for name in tree.studies()}
    for fault in filter(None, faults.values()):
        log.warning("left out: %s", fault)
    return [name for name, fault in faults.items() if not fault]


def former_folders(name: str, tree: Tree) -> list[Path]:
    """Return the folders of the runs that a study had once, and has no more."""
    own = set(study_folders(name, tree))
    return [folder for folder in run_dirs(name, tree) if folder not in own]


def plan(
    study: Study,
    tree: Tree,
    data_dir: Path | None = None,
    entries: list[Entry] | None = None,
) -> list[Entry]:
    """Write a ``planned`` record for every run that has none; return the runs with their records.

    `data_dir` is the folder of the dataset; by default the tree's own folder of that name.
    `entries` are the runs to plan; by default all of the study.
    `SpecError` if the runs of this name are another study's.
    """
    _check_same(study, tree)
    write_study(study, tree)
    entries = ledger(study, tree) if entries is None else entries
    return [_planned(item, study.name, tree, data_dir) for item in entries]


def _check_same(study: Study, tree: Tree) -> None:
    """Refuse to plan a study among completed runs of which it has none."""
    planned = {spec.run_id for spec in study.expand()}
    there = run_dirs(study.name, tree)
    if any(folder.name in planned for folder in there):
        return
    if completed := sum(map(_is_completed, there)):
        raise SpecError(
            f"name = {study.name!r}: {tree.study(study.name)} holds {completed} completed runs of "
            "another study of that name, and none of this one; figures would mix the two. Give "
            "this one another name, or choose another place with --results DIR"
        )


def _is_completed(folder: Path) -> bool:
    try:
        return read_record(folder).status == "completed"
    except RecordError:
        return False


def plan_one(spec: RunSpec, study: str, tree: Tree, data_dir: Path | None = None) -> Entry:
    """Write a ``planned`` record for a run that has none; return its entry."""
    return _planned(entry(spec, tree.study(study) / spec.run_id), study, tree, data_dir)


def _planned(item: Entry, study: str, tree: Tree, data_dir: Path | None) -> Entry:
    """Write the record of a run that has none; a run of older code is moved to ``old/`` first."""
    spec, directory = item.spec, item.directory
    if spec.work == "probe":
        raise SpecError("work = 'probe': only `ddl doctor` starts probes; choose 'train' or 'load'")
    if item.state not in ("missing", "outdated"):
        return item
    if item.state == "outdated":
        _move_aside(directory, study, tree)
    folder = data_folder(spec, tree, data_dir)
    record = RunRecord.plan(study, spec, portable(folder) if folder else None)
    write_record(directory, record)
    return Entry(spec, directory, "planned", record=record)


def _move_aside(directory: Path, study: str, tree: Tree) -> None:
    """Move the run of older code to ``old/``, beside what is there already."""
    require_folder(directory)
    target = tree.old().study(study) / directory.name
    places = (target.with_name(f"{target.name}.{number}") for number in itertools.count(2))
    free = next(one for one in itertools.chain([target], places) if not one.exists())
    with exclusive(RunFiles(directory).lock, f"run {directory.name}"):
        try:
            free.parent.mkdir(parents=True, exist_ok=True)
            directory.rename(free)
        except OSError as error:
            raise cannot_write(free, error) from None


def require_folder(directory: Path) -> None:
    """Raise `RecordError` unless a run has a folder, and no link to one, that may change.

    One in published lines is not replaced.
    """
    try:
        refuse_links(directory)
    except OSError as error:
        raise cannot_write(directory, error) from None
    if not directory.is_dir():
        raise RecordError(
            f"run {directory.name} is published in {directory.parent} and is not measured again "
            "there; choose another folder of results with --results DIR"
        )


def data_folder(spec: RunSpec, tree: Tree, chosen: Path | None = None) -> Path | None:
    """Return the folder a run reads, None for synthetic data."""
    if spec.loader == "synthetic" or spec.framework == COMMAND:  # which finds its data itself
        return None
    return chosen or tree.dataset(spec.dataset)


def ledger(
    study: Study, tree: Tree, look: Callable[[RunSpec, Path], Entry] | None = None
) -> list[Entry]:
    """Return one entry per run of the study, in running order; `look` may stand in for `entry`."""
    folder = tree.study(study.name)
    return [(look or entry)(spec, folder / spec.run_id) for spec in study_runs(study, tree)]


def put_aside(study: str, tree: Tree) -> str:
    """Name the runs that a study had once and has no more; nothing where there are none."""
    kinds = {
        f"further runs in {tree.study(study)}, which the study as it is now does not plan": (
            former_folders(study, tree)
        ),
        f"runs of older code in {tree.old().study(study)}": run_dirs(study, tree.old()),
    }
    return "\n".join(
        f"{len(found)} {kind}: they are kept, and no table or figure shows them: "
        f"{some([folder.name for folder in found])}"
        for kind, found in kinds.items()
        if found
    )


def entry(spec: RunSpec, directory: Path) -> Entry:
    """Return the state of one run.

    ``interrupted``: it was asked to stop, or it is ``running`` in its record and no process holds
    its lock. ``unknown``: it is ``running`` in its record, and its lock cannot be read.
    ``damaged``: its record cannot be read; `damage.checked` also looks at its lines.
    ``outdated``: older code began it, by a method or loader that is not today's.
    """
    if not is_stored(directory):
        return Entry(spec, directory, "missing")
    try:
        record = read_record(directory)
    except RecordError as error:
        return Entry(spec, directory, "damaged", str(error))
    state: State = record.status
    reason, category = "", None
    held = is_locked(directory) if state == "running" else None
    if state == "running" and held is None:
        state, reason = "unknown", "its lock cannot be read, so a process may be at work on it"
    elif state == "running" and not held:
        state, reason = "interrupted", "its process is gone"
    elif cause := record.error:
        state = "interrupted" if cause.kind == INTERRUPTED else state
        reason, category = str(cause), cause.category
    if state not in ("running", "unknown") and record.outdated:
        state, reason, category = "outdated", record.outdated, None
    return Entry(spec, directory, state, reason, record.job_id, category, record)


def counts(entries: list[Entry]) -> str:
    """Return e.g. ``"18 runs: 12 completed, 1 failed, 5 planned"``."""
    by_state = Counter(entry.state for entry in entries)
    parts = ", ".join(f"{number} {state}" for state, number in sorted(by_state.items()))
    return f"{plural(len(entries), 'run')}: {parts}"


def remedies(entries: list[Entry]) -> list[str]:
    """Return one line on each class of failure: what to do about it."""
    return [remedy(one) for one in dict.fromkeys(item.category for item in entries) if one]


@contextmanager
def exclusive(lock: Path, what: str) -> Iterator[None]:
    """Hold `lock` for a ``with`` block; the system frees it when the process dies.

    On a file system without ``flock`` the file itself is the lock, and stays after a crash.
    `LaunchError` after `PATIENCE_S` if another process holds it.
    """
    try:
        refuse_links(lock)
        lock.parent.mkdir(parents=True, exist_ok=True)
        guard = acquire(lock, PATIENCE_S)
    except Timeout:
        raise LaunchError(
            f"{what} is being run by another process (it holds {lock}); "
            "wait for it, or watch it with `ddl study status`. If no such process lives, on a "
            "file system without locks (flock), remove that file"
        ) from None
    except OSError as error:
        raise cannot_write(lock.parent, error) from None
    try:
        yield
    finally:
        guard.release()


def is_locked(directory: Path) -> bool | None:
    """Say whether a living process holds the lock of a run; None if that cannot be known."""
    return is_held(RunFiles(directory).lock)


def finish_run(directory: Path, cause: Failure, *, restate: bool = False) -> None:
    """Write into the record of a run why it failed, unless it is complete.

    The start at work ends with it. With `restate`, a last start that ended with the former cause
    gets the new one. If the record cannot be written, the `RecordError` has the cause.
    """
    record = read_record(directory)
    if record.status == "completed":
        return
    before = record.status
    record.close_attempts(cause, now())
    if restate and record.attempts and record.attempts[-1].error == record.error:
        record.attempts[-1].error = cause
    record.status, record.error = "failed", cause
    try:
        write_record(directory, record)
    except RecordError as error:
        raise RecordError(
            f"{cause}; its record cannot say so and remains {before!r}: {error}"
        ) from None


def finish_idle_run(
    directory: Path, job_id: str | None, cause: Callable[[RunRecord], Failure | None]
) -> None:
    """Finish a run of a job by what `cause` makes of its record, unless that is None.

    `LaunchError` if a process is at work on the run.
    """
    with exclusive(RunFiles(directory).lock, f"run {directory.name}"):
        record = read_record(directory)
        if record.job_id == job_id and (found := cause(record)):
            finish_run(directory, found)


def complete_text(record: RunRecord, directory: Path) -> str:
    """Return the reason to refuse a complete run, and the remedy."""
    return (
        f"run {record.run_id} is complete and will not be run again; "
        f"to measure anew, choose another `repeat`, or remove its folder {directory}"
    )
