from pathlib import Path

import pytest

from ddl_core.errors import RecordError
from ddl_tools.records.ledger import find_study, write_study
from ddl_tools.records.paths import RunFiles, Tree, results
from ddl_tools.records.profiling import read_profile, write_profile
from ddl_tools.records.publish import publish
from ddl_tools.records.run import read_record, write_record
from ddl_tools.records.stored import stored, values
from ddl_tools.study import Study
from tests.launch.running import TINY, finish, planned
from tests.records.test_damage import empty_profile


@pytest.fixture
def target(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "data")


def completed(repeat: int = 0, dirty: bool = False, data_dir: str | None = None) -> Path:
    run_dir = planned(repeat=repeat)
    finish(run_dir, provenance={"git_dirty": dirty}, data_dir=data_dir)
    return run_dir


def written(target: Tree) -> dict[str, bytes]:
    """Return the files of the published study."""
    return {path.name: path.read_bytes() for path in target.study("test").iterdir()}


def names(target: Tree) -> list[str]:
    return sorted(written(target))


def test_complete_runs_are_copied_and_others_are_named(target: Tree) -> None:
    run_dir = completed()
    (run_dir / "weights.pt").write_bytes(b"large")
    open_run = planned(repeat=1)
    done = publish("test", results(), target)
    assert done.new == [run_dir.name]
    assert done.skipped == [f"{open_run.name} (planned)"]
    assert done.warnings == []
    copy = target.study("test") / run_dir.name
    assert names(target) == ["epochs.jsonl", "runs.jsonl"]
    assert values(stored(copy)) == values(stored(run_dir))
    assert read_record(copy) == read_record(run_dir)
    finish(open_run, provenance={"git_dirty": False})
    done = publish("test", results(), target)
    assert (done.new, done.unchanged) == ([open_run.name], [run_dir.name])


def test_other_code_of_the_first_epochs_is_a_doubt(target: Tree) -> None:
    finish(planned(), provenance={"git_dirty": False, "began_with": ["torch 2.0"]})
    (doubt,) = publish("test", results(), target).warnings
    assert "torch 2.0" in doubt


def test_the_reason_for_a_missing_commit_is_a_doubt(target: Tree) -> None:
    facts = {"git_commit": None, "git_dirty": None, "git_missing": "git is not installed"}
    finish(planned(), provenance=facts)
    (doubt,) = publish("test", results(), target).warnings
    assert "git is not installed" in doubt


def test_a_profile_is_copied_without_its_traces(target: Tree) -> None:
    run_dir = completed()
    profile = empty_profile(run_dir)
    write_profile(run_dir, profile)
    RunFiles(run_dir).trace(0).parent.mkdir()
    RunFiles(run_dir).trace(0).write_bytes(b"large")
    publish("test", results(), target)
    copy = target.study("test") / run_dir.name
    assert names(target) == ["epochs.jsonl", "profiles.jsonl", "runs.jsonl"]
    assert values(stored(copy)) == values(stored(run_dir))
    assert read_profile(copy) == profile
    assert publish("test", results(), target).unchanged == [run_dir.name]
    write_profile(run_dir, profile.model_copy(update={"steps": 6}))
    with pytest.raises(RecordError, match="published before with other content"):
        publish("test", results(), target)


def test_a_published_record_is_never_replaced(target: Tree) -> None:
    run_dir = completed()
    publish("test", results(), target)
    before = written(target)
    write_record(run_dir, read_record(run_dir).model_copy(update={"job_id": "17"}))
    completed(repeat=1)
    with pytest.raises(RecordError, match="published before with other content"):
        publish("test", results(), target)
    assert written(target) == before


def test_doubtful_origins_are_warned_of(target: Tree) -> None:
    completed(dirty=True, data_dir="/here/only")
    warnings = publish("test", results(), target).warnings
    assert "uncommitted changes" in warnings[0]
    assert "/here/only" in warnings[1]


def test_what_cannot_be_read_is_not_published(target: Tree) -> None:
    run_dir = completed()
    with RunFiles(run_dir).epochs.open("a") as file:
        file.write("{}\n")
    with pytest.raises(RecordError, match="line 3"):
        publish("test", results(), target)
    assert not target.runs.exists()


def test_what_the_study_asked_goes_with_it(target: Tree) -> None:
    completed()
    study = Study(name="test", question="Why?", base=TINY)
    write_study(study, results())
    publish("test", results(), target)
    assert find_study("test", target) == study


def test_a_study_that_is_a_link_is_not_published(target: Tree, tmp_path: Path) -> None:
    completed()
    secret = tmp_path / "secret"
    secret.write_text("secret")
    results().asked("test").symlink_to(secret)
    publish("test", results(), target)
    assert not target.asked("test").exists()
