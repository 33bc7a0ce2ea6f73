"""The reference pages of docs/ are what the code says: no field forgotten, none invented."""

from pathlib import Path

import click
import pytest

from ddl_core.config import RunSpec, run_fields
from ddl_core.strategies.base import Single
from ddl_tools.cli import reference
from ddl_tools.rank import pytorch
from ddl_tools.rank.worker import affinity
from ddl_tools.records.progress import Progress
from ddl_tools.records.provenance import host, provenance
from tests.cli.bad_inputs import Words, commands


@pytest.mark.parametrize("path", sorted(commands()), ids=" ".join)
def test_each_option_that_a_user_can_type_is_explained(path: Words) -> None:
    text = "".join(map(page, ("cli", "cli-data", "cli-study")))
    section = text.partition(f"## ddl {' '.join(path)}\n")[2].partition("\n## ")[0]
    for parameter in commands()[path].params:
        if not isinstance(parameter, click.Option) or parameter.hidden:
            continue
        if path == ("run",) and parameter.name in run_fields():
            assert f"| `{parameter.name}` |" in page("run-fields")
        else:
            assert any(f"`{flag} " in section or f"`{flag}`" in section for flag in parameter.opts)


@pytest.mark.parametrize("model", reference.MODELS)
def test_each_field_of_a_record_is_explained(model) -> None:
    assert all(field.description for field in model.model_fields.values())
    assert f"<!-- code: {model.__name__} -->" in page("records") + page("json")


def test_all_that_a_run_records_of_machine_and_settings_is_described() -> None:
    spec = RunSpec(device="cpu")
    group = Single(spec)
    known = {**provenance(), **host(), **pytorch.describe(group.device)}
    known |= {**pytorch.threads(), **pytorch.settings(spec, group.device)}
    known |= {**affinity(group, 1), "environment": {}, "communication": {}}
    for name in known:
        assert f"`{name}`" in page("records")


def test_progress_is_described(tmp_path: Path) -> None:
    for name in Progress(tmp_path / "progress.json", 1)._state:
        assert f"`{name}`" in page("result-files")


def page(name: str) -> str:
    return (reference.FOLDER / f"{name}.md").read_text(encoding="utf-8")
