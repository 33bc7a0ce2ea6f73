"""docs/reference/records.md describes the records: no field forgotten, none invented."""

import re
from pathlib import Path
from typing import get_args

import pytest

from ddl_core import device
from ddl_core.config import RunSpec
from ddl_core.strategies import affinity
from ddl_core.strategies.base import Single
from ddl_core.timing import Spent
from ddl_tools.records.failures import Category
from ddl_tools.records.profiling import ProfileRecord, RankProfile, Shares
from ddl_tools.records.progress import Progress
from ddl_tools.records.provenance import host, provenance
from ddl_tools.records.run import Attempt, DataInfo, EpochRecord, Failure, RunRecord

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "records.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_column(text: str) -> list[str]:
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


@pytest.mark.parametrize(
    ("title", "model"),
    [
        ("run.json", RunRecord),
        ("epochs.jsonl", EpochRecord),
        ("profile.json", ProfileRecord),
        ("spec", RunSpec),
    ],
)
def test_a_table_has_the_fields_of_its_record_in_their_order(title, model):
    assert first_column(section(title)) == list(model.model_fields)


@pytest.mark.parametrize(
    ("begin", "model"),
    [
        ("`attempts[]`", Attempt),
        ("`error`:", Failure),
        ("`data`:", DataInfo),
        ("`spent` [", Spent),
        ("`ranks[]`", RankProfile),
        ("`shares`:", Shares),
    ],
)
def test_a_paragraph_names_the_fields_of_its_part(begin, model):
    (paragraph,) = (one for one in PAGE.split("\n\n") if one.startswith(begin))
    for field in model.model_fields:
        assert f"`{field}`" in paragraph


def test_all_that_a_run_tells_of_machine_and_settings_is_described():
    text = section("provenance and system")
    spec = RunSpec(device="cpu")
    group = Single(spec)
    known = {**provenance(), **host(), **device.describe(group.device)}
    known |= {**device.threads(), **device.settings(spec, group.device)}
    known |= {**affinity(group, 1), "environment": {}, "communication": {}}
    for name in known:
        assert f"`{name}`" in text


def test_every_class_of_failure_is_described():
    assert first_column(section("Classes of failure")) == list(get_args(Category))


def test_every_setting_has_its_default_and_description():
    text = section("spec")
    for name, field in RunSpec.model_fields.items():
        default = "null" if field.default is None else str(field.default).lower()
        assert f"| `{name}` | {default} | {field.description} |" in text


def test_progress_is_described(tmp_path):
    progress = Progress(tmp_path / "progress.json", 1)
    for name in progress._state:
        assert f"`{name}`" in section("Files of a run at work")
