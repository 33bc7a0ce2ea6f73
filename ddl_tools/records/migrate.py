"""Rename the fields of records of schema 5 and older, as `ddl study migrate` does.

A run's name is a hash over its fields, so the folders of runs get other names too.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from ddl_core.config import RunSpec
from ddl_core.errors import RecordError
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.run import SCHEMA_VERSION, RunRecord, write_record
from ddl_tools.records.storage import read_json, read_text, write_atomically
from ddl_tools.study import reading

_EMULATION = ("link_mbit", "uplink_mbit", "step_ms", "shrink", "straggler", "jitter", "draws")
RENAMED = {
    "library": "framework",
    "warmup_steps": "discard_steps",
    "window_steps": "min_steps_per_epoch",
    **{f"box_{name}": f"emu_{name}" for name in _EMULATION},
}
_IN_STUDY = {**RENAMED, "turns": "interleave"}
_FORMER = {new: old for old, new in RENAMED.items()}


def migrate(study: str, tree: Tree) -> list[str]:
    """Bring the records of a study to schema 6; return the new names of the runs that changed.

    A run that was not complete begins again: its checkpoint has the former name, and says so.

    Raises
    ------
    RecordError
        If a record cannot be read, or is not that of its name; then no file was changed.
    """
    folders = [folder for folder in tree.run_folders(study) if RunFiles(folder).record.exists()]
    records = {folder: _record(folder) for folder in folders}
    names = {_former_id(record.spec): record.run_id for record in records.values()}
    older = [folder for folder in folders if _version(folder) < SCHEMA_VERSION]
    asked = tree.asked(study)
    if asked.exists():
        write_atomically(asked, json.dumps(_renamed(read_json(asked)), indent=1) + "\n")
    for folder in older:
        record = records[folder]
        files = RunFiles(folder.rename(folder.with_name(record.run_id)))
        for path in (files.epochs, files.profile):
            if path.exists():
                _rewrite(path, names)
        write_record(files.directory, record)  # last: its version says that all is done
    return [records[folder].run_id for folder in older]


def _version(folder: Path) -> int:
    return int(read_json(RunFiles(folder).record).get("schema_version", 0))


def _record(folder: Path) -> RunRecord:
    """Return the record of a run with the names of schema 6."""
    path = RunFiles(folder).record
    content = read_json(path)
    with reading(path, RunRecord):
        fields = {RENAMED.get(name, name): value for name, value in content["spec"].items()}
        spec, name = RunSpec.model_validate(fields), content["run_id"]
        new = {"schema_version": SCHEMA_VERSION, "spec": fields, "run_id": spec.run_id}
        record = RunRecord.model_validate({**content, **new})
    if name not in (spec.run_id, _former_id(spec)):
        raise RecordError(f"{path}: its spec is not that of its run_id {name!r}")
    return record


def _former_id(spec: RunSpec) -> str:
    """Return the name of a run as it was before schema 6."""
    fields = spec.model_dump(mode="json", exclude_defaults=True)
    former = {_FORMER.get(name, name): value for name, value in fields.items()}
    digest = hashlib.sha256(json.dumps(former, sort_keys=True).encode()).hexdigest()[:8]
    return f"{spec.run_id.rpartition('-')[0]}-{digest}"


def _renamed(value: Any) -> Any:
    """Return a part of ``study.json`` with the names of schema 6."""
    if isinstance(value, list):
        return [_renamed(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {_IN_STUDY.get(name, name): _renamed(part) for name, part in value.items()}


def _rewrite(path: Path, names: dict[str, str]) -> None:
    text = read_text(path).replace('"turn":', '"interleave":')
    for former, new in names.items():
        text = text.replace(former, new)
    write_atomically(path, text)
