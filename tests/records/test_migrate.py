"""Records of schema 5 get the names of schema 6, and no other value."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddl_core.errors import RecordError
from ddl_tools.cli import main
from ddl_tools.records.ledger import read_study, write_study
from ddl_tools.records.migrate import RENAMED, migrate
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.run import Slot, append_epoch, read_record, read_rows
from ddl_tools.study import Interleave, Study
from tests.launch.running import finish, planned
from tests.records.test_run import epoch_row

FORMER_ID = "tensorflow-single-synthetic-resnet8-1x1-r0-3ef5d16f"


@pytest.fixture
def former() -> Path:
    """Return the folder of a completed run as schema 5 had it, of a study that interleaved."""
    folder = planned(framework="tensorflow", model="resnet8", discard_steps=2)
    block = Slot(block="b", reference=folder.name, round=0, place=0)
    finish(folder, system={"communication": {"library": "gloo"}})
    append_epoch(folder, epoch_row(7, interleave=block))
    reference = Interleave(reference={"discard_steps": 2})
    base = {"framework": "tensorflow"}
    study = Study(name="test", question="?", base=base, interleave=reference)
    write_study(study, results())
    names = {new: old for old, new in RENAMED.items()} | {"interleave": "turns"}
    for path in (RunFiles(folder).record, results().asked("test")):
        text = path.read_text().replace('"schema_version": 6', '"schema_version": 5')
        for new, old in names.items():
            text = re.sub(rf'(?m)^( +)"{new}":', rf'\1"{old}":', text)
        path.write_text(text.replace(folder.name, FORMER_ID))
    path = RunFiles(folder).epochs
    text = path.read_text().replace('"interleave":', '"turn":')
    path.write_text(text.replace(folder.name, FORMER_ID))
    return folder.rename(folder.with_name(FORMER_ID))


def _values(folder: Path) -> list[str]:
    """Return all values of a record as they are written; of names and the version, nothing."""
    text = RunFiles(folder).record.read_text().replace(folder.name, "")
    return [line.split(": ", 1)[-1] for line in text.splitlines() if "schema_version" not in line]


def test_a_record_of_schema_5_names_the_command(former: Path) -> None:
    with pytest.raises(RecordError, match=r"schema version 5.*`ddl study migrate"):
        read_record(former)


def test_names_change_and_values_do_not(former: Path) -> None:
    before = _values(former)
    done = CliRunner().invoke(main, ["study", "migrate", "test"])
    assert (done.exit_code, done.output) == (0, "1 runs have the names of schema 6\n")
    (folder,) = results().run_folders("test")
    record = read_record(folder)
    assert folder.name == record.run_id == record.spec.run_id != FORMER_ID
    assert (record.spec.framework, record.spec.discard_steps) == ("tensorflow", 2)
    assert record.system == {"communication": {"library": "gloo"}}
    assert _values(folder) == before
    (turn,) = [row.interleave for row in read_rows(folder) if row.interleave]
    assert turn.reference == record.run_id
    study = read_study("test", results())
    assert study is not None
    assert study.interleave == Interleave(reference={"discard_steps": 2})
    assert migrate("test", results()) == []


def test_a_record_of_another_name_changes_nothing(former: Path) -> None:
    files = RunFiles(former)
    text = files.record.read_text().replace('"warmup_steps": 2', '"warmup_steps": 3')
    files.record.write_text(text)
    with pytest.raises(RecordError, match=FORMER_ID):
        migrate("test", results())
    assert files.record.read_text() == text
