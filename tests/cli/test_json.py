"""With ``--json`` a command prints one document of its model."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from ddl_tools.cli import answers, reference
from ddl_tools.records.paths import PROJECT
from tests.cli.bad_inputs import commands
from tests.launch.running import ddl, study_file

SITE = ("--site", "juwels_booster")
DATA = ("--results", PROJECT / "data")
CASES: list[tuple[type[BaseModel], tuple[object, ...]]] = [
    (answers.StudyStatus, ("study", "status", "sharding", *DATA)),
    (answers.StudyPlan, ("study", "plan", "one_gpu", "--dry-run")),
    (answers.StudyPlan, ("study", "plan", "one_gpu", "--dry-run", *SITE)),
    (answers.StudySubmit, ("study", "submit", "one_gpu", *SITE, "--account", "x", "--dry-run")),
    (answers.StudyCompare, ("study", "compare", "sharding", *DATA)),
    (answers.Advise, ("advise", *SITE, "--gpus", 8)),
    (answers.Proposal, ("proposal", "sharding")),
]


@pytest.mark.parametrize(("model", "words"), CASES, ids=lambda one: getattr(one, "__name__", ""))
def test_the_answer_is_one_document(model: type[BaseModel], words: tuple[object, ...]) -> None:
    text, said = ddl(*words, status=0), ddl(*words, "--json", status=0)

    def refuse(number: str) -> None:
        raise AssertionError(f"{number} is no JSON")

    found = json.loads(said.stdout, parse_constant=refuse)
    assert [*found] == [*model.model_fields]
    model.model_validate_json(said.stdout)
    assert text.stdout not in said.stdout


def test_the_state_of_runs(tmp_path: Path) -> None:
    file = study_file(tmp_path, classes=[3, 4])
    for words in (("plan", file), ("status", file)):
        found = json.loads(ddl("study", *words, "--json", status=0).stdout)
        assert found["counts"] == {"planned": 2}
        assert [run["settings"]["classes"] for run in found["runs"]] == [3, 4]
        assert all(Path(run["directory"]).is_dir() for run in found["runs"])
    assert ddl("study", "status", file, "--json", "--watch").exit_code == 2


def test_jobs_of_a_dry_run() -> None:
    words = ("study", "submit", "one_gpu", *SITE, "--account", "x", "--dry-run", "--json")
    found = answers.StudySubmit.model_validate_json(ddl(*words, status=0).stdout)
    assert len(found.jobs) == sum(len(job.runs) for job in found.jobs) == 15
    assert found.node_hours_at_most == sum(job.node_hours_at_most for job in found.jobs)
    assert all(f"--job-name={job.name}" in job.script_text for job in found.jobs)
    assert {job.job_id for job in found.jobs} == {None}


def test_the_stored_schema_is_that_of_the_models() -> None:
    assert reference.SCHEMA.read_text(encoding="utf-8") == reference.schema()
    assert {model.__name__ for model, _ in CASES} <= {*json.loads(reference.schema())["$defs"]}


def test_the_page_has_the_command_of_each_option() -> None:
    page = (reference.FOLDER / "json.md").read_text(encoding="utf-8")
    able = {path for path, one in commands().items() if any("--json" in p.opts for p in one.params)}
    assert {line[3:] for line in page.splitlines() if line.startswith("## ")} == {
        f"ddl {' '.join(path)}" for path in able
    }
