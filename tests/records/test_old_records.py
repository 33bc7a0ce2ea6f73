"""Old records stay readable for ever, and stand for what they were measured with."""

import csv
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from ddl_core.config import RunSpec
from ddl_core.errors import RecordError, SpecError
from ddl_core.retired import SETTINGS, refusal
from ddl_tools.analysis.tables import WITHDRAWN, runs_table, windows_table
from ddl_tools.cli import main
from ddl_tools.records.damage import examine
from ddl_tools.records.ledger import entry, plan, plan_one, put_aside
from ddl_tools.records.paths import Tree
from ddl_tools.records.run import Attempt, RunRecord, read_record, read_rows
from ddl_tools.records.storage import now
from ddl_tools.scaling.measured import trainings
from ddl_tools.study import Study
from tests.records import inventory

OLD = Path(__file__).parent / "old"
KINDS = sorted(folder.name for folder in OLD.iterdir())
FED = ["dali_fed_cpu", "dali_fed_gpu"]


def keeps(now: Any, then: Any) -> bool:
    """Say whether a value that was read has all that was written."""
    if isinstance(then, dict):
        return all(name in now and keeps(now[name], then[name]) for name in then)
    if isinstance(then, list):
        return len(now) == len(then) and all(map(keeps, now, then))
    if isinstance(then, float) and math.isnan(then):
        return math.isnan(now)
    return bool(now == then)


def assert_read_as_written(folder: Path) -> None:
    written, epochs = inventory.written(folder)
    record = read_record(folder)
    read = record.model_dump()
    read["spec"] = dict(record.spec) | {name: setting.value for name, setting in SETTINGS.items()}
    assert keeps(read, written), folder
    rows = [row.model_dump() | row.retired for row in read_rows(folder)]
    assert keeps(rows, epochs), folder


def test_no_published_record_was_changed_or_lost():
    rows = inventory.read()
    assert len(rows) == 850
    for row in rows:
        record, epochs = inventory.written(inventory.place(row))
        assert (record["study"], record["run_id"]) == (row["study"], row["run_id"])
        assert inventory.digest(record) == row["record_sha256"], row
        assert inventory.digest(epochs) == row["epochs_sha256"], row


def test_each_published_record_is_read_field_by_field():
    for row in inventory.read():
        assert_read_as_written(inventory.place(row))


@pytest.fixture
def results(tmp_path):
    """Return a function that puts the old record of a kind into a tree of results."""

    def place(kind: str) -> tuple[Tree, Path]:
        record = read_record(OLD / kind)
        folder = tmp_path / "runs" / record.study / record.run_id
        shutil.copytree(OLD / kind, folder)
        return Tree(tmp_path), folder

    return place


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_of_each_kind_is_read_in_results(kind, results):
    tree, folder = results(kind)
    assert_read_as_written(folder)
    assert examine(folder).damages == []
    (row,) = runs_table(tree).to_dict("records")
    assert row["status"] == (WITHDRAWN if kind in FED else "completed")
    assert row["loader"] == read_record(folder).spec.loader


def test_a_value_that_was_lost_would_be_seen():
    assert not keeps({"spec": {}}, {"spec": {"loader": "native"}})
    assert not keeps({"loss": 0.0}, {"loss": math.nan})


@pytest.mark.parametrize("kind", FED)
def test_numbers_of_the_fed_loaders_are_used_nowhere(kind, results):
    tree, _ = results(kind)
    (row,) = runs_table(tree).to_dict("records")
    assert row["damage"].startswith("DALI fed by Python (withdrawn)")
    assert not row["throughput_samples_per_s"] > 0
    assert windows_table(tree).empty
    assert trainings(tree) == []


@pytest.mark.parametrize("name", ["dali_reader_cpu", "dali_reader_gpu"])
def test_a_new_run_has_no_retired_name(name):
    with pytest.raises(SpecError, match=rf"'{name}' is retired: use 'dali_[cg]pu'"):
        RunSpec.parse({"loader": name})


@pytest.mark.parametrize("name", SETTINGS)
def test_a_retired_setting_is_read_at_one_value_and_set_by_no_new_run(name, results):
    words = re.escape(refusal(name))
    tree, folder = results("native")
    path = folder / "run.json"
    record = json.loads(path.read_text())
    assert record["spec"][name] == SETTINGS[name].value
    record["spec"][name] = "another"
    path.write_text(json.dumps(record))
    with pytest.raises(RecordError, match=words):
        read_record(folder)
    with pytest.raises(ValidationError, match=words):
        Study(name="old", question="?", base={name: SETTINGS[name].value})
    flag = f"--{name.replace('_', '-')}"
    value = [] if isinstance(SETTINGS[name].value, bool) else ["another"]
    asked = CliRunner().invoke(main, ["run", "--results", str(tree.root), flag, *value])
    assert (asked.exit_code, refusal(name) in asked.output) == (2, True)


def study_of(folder: Path, **fields: Any) -> Study:
    """Return a study of one run, that of a record or another."""
    spec = read_record(folder).spec.model_copy(update=fields)
    base = spec.model_dump(mode="json", exclude_defaults=True, exclude={"repeat"})
    return Study(name=read_record(folder).study, question="?", base=base, axes=[{}], repeats=1)


@pytest.mark.parametrize("kind", ["dali_fed_cpu", "profile_method_1"])
def test_a_run_of_older_code_is_not_done_but_moved_aside(kind, results):
    tree, folder = results(kind)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    study = study_of(folder)
    (spec,) = study.expand()
    assert spec.run_id == folder.name
    assert entry(spec, folder).state == "outdated"
    (item,) = plan(study, tree)
    assert item.state == "planned"
    moved = tree.old().study(study.name) / folder.name
    assert {name: (moved / name).read_bytes() for name in before} == before
    assert f"1 runs of older code in {moved.parent}" in put_aside(study.name, tree)
    shutil.rmtree(folder)
    shutil.copytree(OLD / kind, folder)
    plan_one(spec, study.name, tree)
    assert {name: (moved / name).read_bytes() for name in before} == before
    assert moved.with_name(f"{folder.name}.2").is_dir()


def test_a_run_of_todays_code_is_done(results):
    tree, folder = results("native")
    (item,) = plan(study_of(folder), tree)
    assert item.state == "completed"
    assert not tree.old().root.exists()


def test_a_start_goes_on_with_no_run_of_older_code():
    record = read_record(OLD / "dali_fed_cpu")
    with pytest.raises(RecordError, match=r"begun by older code: loader 'dali_cpu' has version 2"):
        record.begin_attempt(Attempt(started_utc=now()))
    fresh = RunRecord.plan("study", record.spec)
    fresh.loader_version = 1
    assert not fresh.outdated  # nothing has measured yet
    fresh.begin_attempt(Attempt(started_utc=now()))
    assert (fresh.loader_version, fresh.withdrawn) == (2, None)


def test_the_list_of_withdrawn_runs_is_that_of_the_records():
    with (inventory.DATA / "withdrawn.csv").open(encoding="utf-8", newline="") as file:
        listed = {(row["tree"], row["study"], row["run_id"]) for row in csv.DictReader(file)}
    found = {
        (row["tree"], row["study"], row["run_id"])
        for row in inventory.read()
        if read_record(inventory.place(row)).withdrawn
    }
    assert listed == found
    assert len(found) == 16 + 20 + 5 + 3 + 16 + 20
