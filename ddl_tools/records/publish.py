"""Copy the records of completed runs to the committed tree."""

import filecmp
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddl_core.errors import RecordError
from ddl_core.files import shown
from ddl_tools.records.damage import verify
from ddl_tools.records.ledger import former_folders
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.run import RunRecord
from ddl_tools.records.storage import write_atomically


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
    for study, (folders, done) in chosen.items():
        for folder in folders:
            published = _is_published(folder, target.study(study) / folder.name)
            (done.unchanged if published else done.new).append(folder.name)
    for study, (folders, done) in chosen.items():
        for folder in folders:
            if folder.name in done.new:
                for name in _files(folder):
                    copy = target.study(study) / folder.name / name
                    write_atomically(copy, (folder / name).read_bytes())
        if source.asked(study).exists():
            write_atomically(target.asked(study), source.asked(study).read_bytes())
    return {study: done for study, (_, done) in chosen.items()}


def completed_runs(study: str, source: Tree) -> tuple[list[Path], Published]:
    """Return the folders of the completed runs of a study, with the warnings and other runs.

    `RecordError` if there are no runs, or a record is damaged.
    """
    found = verify(source, study)
    if damages := [line for one in found for line in one.lines()]:
        raise RecordError("\n".join(["not published, for these are damaged:", *damages]))
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
    if origin.get("git_dirty") is not False:
        doubts.append("measured with uncommitted changes, or outside a git checkout")
    if record.data_dir and Path(record.data_dir).is_absolute():
        doubts.append(f"names a folder of its machine: {shown(record.data_dir)}")
    return [f"{record.run_id}: {doubt}" for doubt in doubts]


def _files(folder: Path) -> list[str]:
    """Return the names of the files to publish; the record last, it makes the copy complete."""
    run = RunFiles(folder)
    files = (run.epochs, run.profile, run.record)
    return [path.name for path in files if path != run.profile or path.exists()]


def _is_published(folder: Path, copy: Path) -> bool:
    """Say whether `copy` is published already; `RecordError` if it has other content."""
    if not RunFiles(copy).record.exists():
        return False
    names = _files(folder)
    if filecmp.cmpfiles(folder, copy, names, shallow=False)[0] == names:
        return True
    raise RecordError(
        f"{folder.name} was published before with other content; published records are not "
        f"replaced: remove {copy} first, if that is what you want"
    )
