"""Result records: atomic, strict, append-only."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel

from ddl_core.config import RunSpec
from ddl_core.errors import RecordError
from ddl_tools.emulation.counters import EpochCounters
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.probe import Answer, ProbeRecord
from ddl_tools.records.profiling import ProfileRecord
from ddl_tools.records.run import (
    EpochRecord,
    Failure,
    RunRecord,
    append_epoch,
    read_epochs,
    read_record,
    system_of,
    write_record,
)
from ddl_tools.records.storage import write_atomically
from tests.launch.running import line


def test_a_record_comes_back_as_it_was_written(tmp_path):
    record = RunRecord.plan("laptop", RunSpec(epochs=3), "data")
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    assert list(tmp_path.iterdir()) == [RunFiles(tmp_path).record]  # no temporary file is left


def test_rows_come_back_in_order_and_the_newest_attempt_counts(tmp_path):
    for row in (
        line(0),
        line(0, "eval"),
        line(1, loss=1.0),
        line(1, attempt=1, loss=2.0),
        line(2, attempt=1),
    ):
        append_epoch(tmp_path, row)
    rows = read_epochs(tmp_path)
    assert [(r.epoch, r.phase, r.attempt) for r in rows] == [
        (0, "train", 0),
        (0, "eval", 0),
        (1, "train", 1),
        (2, "train", 1),
    ]
    assert rows[2].loss == 2.0


def test_a_line_whose_writer_was_killed_is_no_row_and_is_cut_by_the_next_writer(tmp_path):
    append_epoch(tmp_path, line(0))
    path = RunFiles(tmp_path).epochs
    with path.open("a") as file:
        file.write('{"attempt": 0, "epo')
    assert len(read_epochs(tmp_path)) == 1
    append_epoch(tmp_path, line(1))
    assert [row.epoch for row in read_epochs(tmp_path)] == [0, 1]
    assert path.read_text().count("\n") == 2


def test_a_diverged_loss_survives_the_file(tmp_path):
    append_epoch(tmp_path, line(0, loss=float("nan")))
    loss = read_epochs(tmp_path)[0].loss
    assert loss is not None
    assert loss != loss


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(RecordError, match="--results"):
        write_atomically(blocked / "run.json", "{}")


def fill(folder):
    with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
        while file.write(b"\0" * 512):
            pass


def append_until_full(folder):
    for epoch in range(1, 200):
        append_epoch(folder, line(epoch))


def test_a_full_disk_costs_no_finished_record(mount):
    full_disk = mount("size=64k")
    record = RunRecord.plan("s", RunSpec())
    write_record(full_disk, record)
    append_epoch(full_disk, line(0))
    fill(full_disk)
    with pytest.raises(RecordError, match="No space left"):
        write_record(full_disk, record.model_copy(update={"status": "completed"}))
    with pytest.raises(RecordError, match="No space left"):
        append_until_full(full_disk)
    assert read_record(full_disk) == record
    rows = read_epochs(full_disk)
    assert rows[0].epoch == 0
    assert RunFiles(full_disk).epochs.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("message", ["no such network", "TypeError: no such network"])
def test_a_failure_names_its_kind_once(message):
    assert str(Failure.of("TypeError", message)) == "TypeError: no such network"


def test_a_failure_may_name_a_file_whose_name_is_not_utf8(tmp_path):
    name = os.fsdecode(b"na\xefve.jpg")
    failure = Failure.of("DataError", f"{name} is gone")
    record = RunRecord.plan("s", RunSpec()).model_copy(update={"error": failure})
    write_record(tmp_path, record)
    assert read_record(tmp_path).error.message == r"na\udcefve.jpg is gone"


def test_a_fact_is_one_line_that_can_be_printed(tmp_path):
    facts = {"cpu": "a\nb\x1b[31m\u202ec", "environment": {"x\ny": "\x00"}, "other": "a\nb"}
    spec = RunSpec()
    record = RunRecord.plan("test", spec).model_copy(update={"system": facts})
    write_record(tmp_path / "one", record)
    read = read_record(tmp_path / "one").system
    assert read["cpu"] == r"a b\x1b[31m\u202ec"
    assert read["environment"] == {"x y": r"\x00"}
    odd = {"cpu": "x" * 10**6, "energy_missing": "\udce9", "settings": {"a": [1]}}
    write_record(tmp_path / "two", record.model_copy(update={"system": system_of(odd)}))
    assert read_record(tmp_path / "two").system["energy_missing"] == "\\udce9"


MODELS = (RunRecord, EpochRecord, ProfileRecord, ProbeRecord, Answer, EpochCounters)
LIMITS = {"string": "maxLength", "integer": "maximum", "number": "maximum", "array": "maxItems"}


def without_limit(schema: Any, at: str = "") -> Iterator[str]:
    """Yield the places of a JSON schema that hold a value of any size."""
    if isinstance(schema, list):
        for one in schema:
            yield from without_limit(one, at)
    elif isinstance(schema, dict):
        limit = LIMITS.get(str(schema.get("type")))
        if limit and not {limit, "exclusiveMaximum", "enum", "const"} & schema.keys():
            yield f"{at}: {schema['type']}"
        for name, one in schema.items():
            if name not in ("default", "description", "const", "enum"):
                yield from without_limit(one, f"{at}.{name}")


@pytest.mark.parametrize("model", MODELS)
def test_each_value_of_a_record_has_a_limit(model: type[BaseModel]) -> None:
    schema = model.model_json_schema()
    schema.get("$defs", {}).pop("RunSpec", None)  # its own tests look at it
    # A loss may diverge.
    assert [one for one in without_limit(schema) if "loss." not in one] == []
