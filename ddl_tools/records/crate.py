"""A published study as an RO-Crate: its files, with a description that machines read.

The description follows RO-Crate 1.1 and its profile Process Run Crate: each run is an action with
its time, the commit that measured it, and the files with its results.
"""

import re
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddl_core.errors import RecordError
from ddl_core.spelling import choices
from ddl_tools.names import as_asked, named
from ddl_tools.records.archive import STUDY, contents
from ddl_tools.records.ledger import read_study
from ddl_tools.records.paths import LICENCE, StudyFiles, Tree
from ddl_tools.records.run import RunRecord, read_record
from ddl_tools.records.storage import read_text

if TYPE_CHECKING:
    from rocrate.model.entity import Entity
    from rocrate.rocrate import ROCrate

VERSION = "1.1"  # of RO-Crate: the one that the profile builds on
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
AUTHORS = "The ddl authors"
_FILES = StudyFiles(Path())
FILES = {
    STUDY: ("application/json", "Definition of the study: its question and the grid of its runs"),
    _FILES.runs.name: (
        "application/jsonl",
        "A line for each run: its settings, the machine, the software, and how it ended",
    ),
    _FILES.epochs.name: (
        "application/jsonl",
        "A line for each epoch of a run and phase: times, images, losses and accuracies",
    ),
    _FILES.profiles.name: (
        "application/jsonl",
        "A line for each profiled run: where the time of its steps went",
    ),
}
"""Media type and description of each file of a study."""


def require_published(study: str, tree: Tree) -> None:
    """Raise `RecordError` unless the tree has runs of a study."""
    if study not in (known := tree.studies()):
        raise RecordError(
            f"study {study!r} is not published in {tree.runs}; {choices(study, known)}"
        )


def write_crate(study: str, tree: Tree, folder: Path) -> int:
    """Write the completed runs of a study into `folder`; return their number.

    `RecordError` if it has no completed run, a record is damaged, or the data have no licence.
    """
    from rocrate.rocrate import ROCrate

    folders, files = contents(study, tree)
    definition, records = read_study(study, tree), list(map(read_record, folders))
    crate = ROCrate(version=VERSION)
    crate.name = f"Measurements of the study {study!r} of distributed deep-learning training"
    crate.description = definition.question if definition else crate.name
    crate.license = _licence(crate)
    crate.root_dataset["author"] = crate.add_jsonld(
        {"@id": "#authors", "@type": "Organization", "name": AUTHORS}
    )
    crate.root_dataset["conformsTo"] = crate.add_jsonld(
        {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"}
    )
    parts = {}
    for name, content in files.items():
        kind, text = FILES[name]
        facts = {"name": name, "encodingFormat": kind, "description": text}
        parts[name] = crate.add_file(BytesIO(content), name, properties=facts, record_size=True)
    names = named(record.spec for record in records)
    for record in records:
        action = crate.add_action(
            _software(crate, record),
            f"#{record.run_id}",
            object=parts.get(STUDY),
            result=[parts[name] for name in parts if name != STUDY],
            properties={
                "name": names[record.run_id],
                "description": f"Run with the settings: {as_asked(record.spec) or 'all defaults'}",
                **_times(record),
            },
        )
        crate.root_dataset.append_to("mentions", action)
    crate.write(folder)
    return len(records)


def _licence(crate: "ROCrate") -> "Entity":
    """Add the text of the licence as a file; return the licence that its SPDX line names."""
    text = read_text(LICENCE)
    found = re.search(r"^SPDX-License-Identifier: ([\w.+-]+)$", text, re.MULTILINE)
    if not found:
        raise RecordError(f"{LICENCE} has no line 'SPDX-License-Identifier: NAME'")
    facts = {"name": "Licence of the data", "encodingFormat": "text/plain"}
    crate.add_file(BytesIO(text.encode()), LICENCE.name, properties=facts, record_size=True)
    address = f"https://spdx.org/licenses/{found[1]}"
    return crate.add_jsonld({"@id": address, "@type": "CreativeWork", "name": found[1]})


def _software(crate: "ROCrate", record: RunRecord) -> "Entity":
    """Return `ddl` at the commit that measured a run."""
    commit = (record.provenance or {}).get("git_commit")
    identity = f"#ddl-{commit}" if commit else "#ddl"
    facts: dict[str, Any] = {"@id": identity, "@type": "SoftwareApplication", "name": "ddl"}
    if commit:
        facts["softwareVersion"] = commit
    return crate.dereference(identity) or crate.add_jsonld(facts)


def _times(record: RunRecord) -> dict[str, Any]:
    """Return when a run was started first and when it ended."""
    attempts = record.attempts
    times = {
        "startTime": attempts[0].started_utc if attempts else None,
        "endTime": attempts[-1].ended_utc if attempts else None,
    }
    return {name: time.replace("Z", "+00:00") for name, time in times.items() if time}
