"""Rename the fields of records of schema 5 and older, as `ddl study migrate` does.

Schema 6 has other names for some fields of `RunSpec`. A run's name is a hash over these, so the
folders of runs get other names too. No value changes: keys are replaced in the text of the files.
"""

import hashlib
import json
import re
from pathlib import Path

from ddl_core.config import RunSpec
from ddl_core.errors import RecordError
from ddl_core.files import reading
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.storage import read_json, read_text, write_atomically

SCHEMA_VERSION = 6
_EMULATION = ("link_mbit", "uplink_mbit", "step_ms", "shrink", "straggler", "jitter", "draws")
RENAMED = {
    "library": "framework",
    "warmup_steps": "discard_steps",
    "window_steps": "min_steps_per_epoch",
    **{f"box_{name}": f"emu_{name}" for name in _EMULATION},
}
_IN_STUDY = re.compile(rf'(?m)^( +)"({"|".join(RENAMED)})":')
_IN_SPEC = re.compile(rf'(?m)^(  )"({"|".join(RENAMED)})":')  # deeper, `library` is another thing
_FORMER = {new: old for old, new in RENAMED.items()}


def migrate(study: str, tree: Tree) -> list[str]:
    """Bring the records of a study to schema 6; return the new names of the runs that changed.

    A run that was not complete begins again: its checkpoint has the former name, and says so.

    Raises
    ------
    RecordError
        If a record cannot be read, or is not that of its name; then no file was changed.
    """
    specs = {folder: _spec(folder) for folder in _folders(study, tree)}
    names = {_former_id(spec): spec.run_id for spec in specs.values()}
    asked = tree.asked(study)
    if asked.exists():
        text = _IN_STUDY.sub(_renamed, read_text(asked))
        write_atomically(asked, re.sub(r'(?m)^ "turns":', ' "interleave":', text))
    changed = []
    for folder, spec in specs.items():
        target = folder.with_name(spec.run_id)
        if _version(folder) < SCHEMA_VERSION:
            _rewrite(folder.rename(target), names)
            changed.append(target.name)
    return changed


def _folders(study: str, tree: Tree) -> list[Path]:
    return [folder for folder in tree.run_folders(study) if RunFiles(folder).record.exists()]


def _version(folder: Path) -> int:
    return int(read_json(RunFiles(folder).record).get("schema_version", 0))


def _spec(folder: Path) -> RunSpec:
    """Return the spec of a record, with the names of today."""
    path = RunFiles(folder).record
    content = read_json(path)
    with reading(path, RunSpec):
        fields = {RENAMED.get(name, name): value for name, value in content["spec"].items()}
        spec, name = RunSpec.model_validate(fields), content["run_id"]
    if name not in (spec.run_id, _former_id(spec)):
        raise RecordError(f"{path}: its spec is not that of its run_id {name!r}")
    return spec


def _former_id(spec: RunSpec) -> str:
    """Return the name of a run as it was before schema 6."""
    fields = spec.model_dump(mode="json", exclude_defaults=True)
    former = {_FORMER.get(name, name): value for name, value in fields.items()}
    digest = hashlib.sha256(json.dumps(former, sort_keys=True).encode()).hexdigest()[:8]
    return f"{spec.run_id.rpartition('-')[0]}-{digest}"


def _rewrite(folder: Path, names: dict[str, str]) -> None:
    """Rename the fields in the files of a run; ``run.json`` last, for it says which schema."""
    files = RunFiles(folder)
    any_name = re.compile("|".join(map(re.escape, names)))

    def replaced(path: Path) -> str:
        return any_name.sub(lambda found: names[found[0]], read_text(path))

    if files.epochs.exists():
        text = re.sub(r'(?m),"turn":(?=null|\{)', ',"interleave":', replaced(files.epochs))
        write_atomically(files.epochs, text)
    if files.profile.exists():
        write_atomically(files.profile, replaced(files.profile))
    text = _IN_SPEC.sub(_renamed, replaced(files.record))
    version = rf'\g<1>"schema_version": {SCHEMA_VERSION}'
    write_atomically(files.record, re.sub(r'(?m)^( )"schema_version": \d+', version, text))


def _renamed(key: re.Match[str]) -> str:
    return f'{key[1]}"{RENAMED[key[2]]}":'
