"""An exported study, read back by the library of RO-Crate and by the readers of records."""

import sys
import tomllib
from datetime import datetime
from pathlib import Path

import pytest
from rocrate.rocrate import ROCrate

from ddl_core.errors import RecordError
from ddl_tools.cli import study as cli_study
from ddl_tools.records import crate
from ddl_tools.records.crate import PROFILE, write_crate
from ddl_tools.records.ledger import read_study, write_study
from ddl_tools.records.paths import LICENCE, PROJECT, Tree, committed, results
from ddl_tools.records.profiling import write_profile
from ddl_tools.records.publish import publish
from ddl_tools.records.run import read_record
from ddl_tools.records.stored import run_dirs, stored, values
from ddl_tools.study import Study
from tests.launch.running import TINY, ddl, finish, planned
from tests.records.test_damage import empty_profile

QUESTION = 'Which is <b>faster</b>?</script>\n"quoted" \u202eand turned {{ 7 * 7 }}'


@pytest.fixture
def published(tmp_path: Path) -> Tree:
    """Return a tree with two published runs, one with a profile."""
    write_study(Study(name="test", question=QUESTION, base=TINY, repeats=2), results())
    for repeat in range(2):
        run_dir = planned(repeat=repeat)
        finish(run_dir, provenance={"git_dirty": False})
    write_profile(run_dir, empty_profile(run_dir))
    publish("test", results(), tree := Tree(tmp_path / "data"))
    return tree


def exported(study: str, tree: Tree, folder: Path) -> ROCrate:
    write_crate(study, tree, folder)
    return ROCrate(folder)


def test_the_library_reads_what_a_study_is_and_where_its_files_are(
    published: Tree, tmp_path: Path
) -> None:
    found = exported("test", published, folder := tmp_path / "crate")
    assert found.description == QUESTION
    assert found.root_dataset["conformsTo"].id == PROFILE
    (author,) = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["authors"]
    assert found.root_dataset["author"]["name"] == author["name"]
    assert found.license.id == "https://spdx.org/licenses/CC-BY-4.0"
    names = {"LICENSE", "study.json", "runs.jsonl", "epochs.jsonl", "profiles.jsonl"}
    assert {one.id for one in found.data_entities} == names
    assert {path.name for path in folder.iterdir()} == {*names, "ro-crate-metadata.json"}
    for one in found.data_entities:
        assert int(one["contentSize"]) == (folder / one.id).stat().st_size
        assert one["encodingFormat"]
    assert (folder / "LICENSE").read_bytes() == LICENCE.read_bytes()


def test_each_run_is_an_action_of_the_commit_that_measured_it(tmp_path: Path) -> None:
    found = exported("libraries", committed(), tmp_path)
    actions = {one.id: one for one in found.root_dataset["mentions"]}
    records = [read_record(folder) for folder in run_dirs("libraries", committed())]
    assert {f"#{record.run_id}" for record in records} == actions.keys()
    for record in records:
        action = actions[f"#{record.run_id}"]
        assert record.provenance
        assert action["instrument"]["softwareVersion"] == record.provenance["git_commit"]
        assert action["object"].id == "study.json"
        assert [one.id for one in action["result"]] == ["runs.jsonl", "epochs.jsonl"]
        assert "epochs" in action["description"]
        ends = (record.attempts[0].started_utc, record.attempts[-1].ended_utc)
        for name, time in zip(("startTime", "endTime"), ends, strict=True):
            assert datetime.fromisoformat(action[name]) == datetime.fromisoformat(str(time))


@pytest.mark.parametrize("study", ["profile_laptop", "libraries"])
def test_the_records_of_a_crate_are_the_published_ones(study: str, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    exported(study, committed(), tree.study(study))
    assert read_study(study, tree) == read_study(study, committed())
    folders = run_dirs(study, committed())
    assert [one.name for one in run_dirs(study, tree)] == [one.name for one in folders]
    for folder in folders:
        copy = tree.study(study) / folder.name
        assert values(stored(copy)) == values(stored(folder))


def test_an_unknown_licence_is_an_error(
    published: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crate, "LICENCE", tmp_path / "LICENSE")
    (tmp_path / "LICENSE").write_text("All rights reserved\n")
    with pytest.raises(RecordError, match="SPDX-License-Identifier"):
        write_crate("test", published, tmp_path / "crate")


def test_a_failed_export_leaves_no_folder(
    published: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_study, "committed", lambda: published)
    place = tmp_path / "new" / "crate"
    monkeypatch.setitem(sys.modules, "rocrate", None)
    monkeypatch.setitem(sys.modules, "rocrate.rocrate", None)
    said = ddl("study", "export", "test", place, status=1).output
    assert "needs the package 'rocrate'" in said
    assert not place.exists()
    monkeypatch.undo()
    monkeypatch.setattr(cli_study, "committed", lambda: published)
    assert str(place) in ddl("study", "export", "test", place, status=0).output
    assert ROCrate(place).description == QUESTION
