"""Append the records of completed runs to the files of a published study."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ddl_core.errors import RecordError
from ddl_core.files import cannot_write, refuse_links, replacing, shown
from ddl_tools.records.damage import verify
from ddl_tools.records.ledger import definition, exclusive, former_folders, read_study
from ddl_tools.records.paths import StudyFiles, Tree
from ddl_tools.records.run import RunRecord
from ddl_tools.records.storage import MOST_LINES, read_bytes
from ddl_tools.records.stored import has_record, stored, to_lines, values, without

LARGEST_FILE = MOST_LINES  # bytes of a published file


@dataclass
class Published:
    """Names of the runs of one study in a call of `publish`, and its warnings."""

    new: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def publish(study: str, source: Tree, target: Tree) -> Published:
    """Copy the records of every completed run of `study`; replace none that is published.

    `RecordError` if there is nothing to publish, a record is damaged, or a run was published before
    with other content; then nothing was copied.
    """
    return publish_all([study], source, target)[study]


def publish_all(studies: Sequence[str], source: Tree, target: Tree) -> dict[str, Published]:
    """Publish several studies as `publish` does; after an error, none was copied."""
    chosen = {study: completed_runs(study, source) for study in studies}
    with exclusive(target.lock, f"publishing to {target.root}"):
        for study, (folders, done) in chosen.items():
            for folder in folders:
                published = _is_published(folder, target.study(study) / folder.name)
                (done.unchanged if published else done.new).append(folder.name)
        contents = {
            study: _contents(
                study, [one for one in folders if one.name in done.new], source, target
            )
            for study, (folders, done) in chosen.items()
        }
        for study, files in contents.items():
            _write(target.study(study), files)
    return {study: done for study, (_, done) in chosen.items()}


def _contents(study: str, folders: Sequence[Path], source: Tree, target: Tree) -> dict[Path, bytes]:
    """Return the files of a published study that change with further runs."""
    files = StudyFiles(target.study(study))
    new, names = to_lines(folders), {folder.name for folder in folders}
    contents = {}
    for path in files.lines if folders else ():
        before = read_bytes(path, most=MOST_LINES) if path.exists() else b""
        # An earlier publication may have ended before it wrote the records of its epochs.
        if content := without(before, names) + new[path.name]:
            contents[path] = content
        if len(content) > LARGEST_FILE:
            raise RecordError(
                f"{path} would have {len(content) / 1e6:,.4g} MB; a published file has at most "
                f"{LARGEST_FILE / 1e6:g} MB. Divide the study"
            )
    asked = read_study(study, source)
    if asked and asked != read_study(study, target):
        contents[files.definition] = definition(asked)
    return contents


def _write(folder: Path, contents: Mapping[Path, bytes]) -> None:
    """Replace some files of a study together, all or none.

    Were the process killed between two renames, the records would be the old ones: they come last,
    and epochs without a record are no run. Publishing again completes the rest.
    """
    order = (*StudyFiles(folder).lines[::-1], StudyFiles(folder).definition)
    try:
        for path in contents:
            refuse_links(path)
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as replaced:  # the last one that is entered is renamed first
            for path in reversed([path for path in order if path in contents]):
                replaced.enter_context(replacing(path)).write(contents[path])
    except OSError as error:
        raise cannot_write(folder, error) from error


def completed_runs(study: str, source: Tree) -> tuple[list[Path], Published]:
    """Return the folders of the completed runs of a study, with the warnings and other runs.

    `RecordError` if there are no runs, or a record is damaged.
    """
    found = verify(source, study)
    if damages := [line for one in found for line in one.lines()]:
        raise RecordError("\n".join(["none is copied, for these are damaged:", *damages]))
    folders, done = [], Published()
    others = former_folders(study, source)
    for one in found:
        folder, record = one.directory, one.record
        assert record is not None  # else there is a damage
        if record.status != "completed":
            done.skipped.append(f"{record.run_id} ({record.status})")
            continue
        if folder in others:
            done.skipped.append(f"{record.run_id} (not of the study as it is now)")
            continue
        done.warnings.extend(_doubts(record))
        folders.append(folder)
    return folders, done


def _doubts(record: RunRecord) -> list[str]:
    """Return the doubts that a reader of the published record may have."""
    origin = record.provenance or {}
    doubts = []
    if missing := origin.get("git_missing"):
        doubts.append(f"its commit is not known from git: {missing}")
    elif origin.get("git_dirty") is not False:
        doubts.append("measured with uncommitted changes, or outside a git checkout")
    if before := origin.get("began_with"):
        doubts.append(f"its first epochs were trained with {', '.join(map(shown, before))}")
    if record.data_dir and Path(record.data_dir).is_absolute():
        doubts.append(f"names a folder of its machine: {shown(record.data_dir)}")
    return [f"{record.run_id}: {doubt}" for doubt in doubts]


def _is_published(folder: Path, copy: Path) -> bool:
    """Say whether `copy` is published already; `RecordError` if it has other content."""
    if not has_record(copy):
        return False
    if values(stored(folder)) == values(stored(copy)):
        return True
    raise RecordError(
        f"{folder.name} was published before with other content; published records are not "
        f"replaced: remove it from {copy.parent} first, if that is what you want"
    )
