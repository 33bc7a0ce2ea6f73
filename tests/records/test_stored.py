"""Published runs are lines of files: read like folders, appended together, damaged one by one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from pydantic_core import to_json

from ddl_core.errors import LaunchError, RecordError
from ddl_tools.analysis.tables import DAMAGED, profiles_table, runs_table, windows_table
from ddl_tools.records import publish as module
from ddl_tools.records import stored as stored_module
from ddl_tools.records.damage import verify
from ddl_tools.records.ledger import exclusive, ledger, plan, read_study, write_study
from ddl_tools.records.paths import RunFiles, StudyFiles, Tree, committed, results
from ddl_tools.records.profiling import write_profile
from ddl_tools.records.publish import publish
from ddl_tools.records.run import append_epoch, read_record, write_record
from ddl_tools.records.stored import run_dirs, stored, to_lines, values
from ddl_tools.study import Study
from tests.launch.running import TINY, ddl, finish, line, planned
from tests.records.test_damage import empty_profile

STUDY = Study(name="test", question="?", base=TINY, repeats=3)


def completed(**fields: object) -> Path:
    run_dir = planned(**fields)
    finish(run_dir, provenance={"git_dirty": False})
    return run_dir


@pytest.fixture
def runs() -> list[Path]:
    """Return three runs in `results`, one with a profile and one whose loss diverged."""
    write_study(STUDY, results())
    found = [completed(repeat=repeat) for repeat in range(3)]
    write_profile(found[0], empty_profile(found[0]))
    lines = RunFiles(found[1]).epochs
    lines.write_text(lines.read_text().replace('"loss":1.5', '"loss":NaN'))
    return found


@pytest.fixture
def target(runs: list[Path], tmp_path: Path) -> Tree:
    """Return a tree in which they are published."""
    tree = Tree(tmp_path / "data")
    publish("test", results(), tree)
    return tree


def files_of(tree: Tree) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in tree.study("test").iterdir()}


def as_folders(source: Tree, study: str, target: Tree) -> None:
    """Write the runs of a study as folders, as older versions published them."""
    for directory in run_dirs(study, source):
        run, files = stored(directory), RunFiles(target.study(study) / directory.name)
        files.directory.mkdir(parents=True)
        files.record.write_bytes(to_json(run.record().content, indent=1) + b"\n")
        files.epochs.write_bytes(b"".join(to_json(one.content) + b"\n" for one in run.epochs()))
        if profile := run.profile():
            files.profile.write_bytes(to_json(profile.content, indent=1) + b"\n")
    if source.asked(study).exists():
        shutil.copy(source.asked(study), target.asked(study))


def test_both_forms_give_the_same_tables(runs: list[Path], target: Tree) -> None:
    names = {"study.json", "runs.jsonl", "epochs.jsonl", "profiles.jsonl"}
    assert set(files_of(target)) == names
    for table in (runs_table, windows_table):
        pd.testing.assert_frame_equal(table(target), table(results()))
    pd.testing.assert_frame_equal(profiles_table(target), profiles_table(results()))
    assert [path.name for path in run_dirs("test", target)] == sorted(one.name for one in runs)
    for run_dir in runs:
        assert read_record(target.study("test") / run_dir.name) == read_record(run_dir)
    assert target.studies() == ["test"]


@pytest.mark.parametrize("place", ["", "second", "old", "old/second", "old/old"])
def test_published_runs_come_back_from_folders(place: str, tmp_path: Path) -> None:
    tree = Tree(committed().root / place)
    for study in tree.studies():
        copy = Tree(tmp_path)
        as_folders(tree, study, copy)
        directories = run_dirs(study, tree)
        assert [one.name for one in copy.folders(study)] == [one.name for one in directories]
        assert to_lines(run_dirs(study, copy)) == to_lines(directories)
        assert [values(stored(one)) for one in directories] == [
            values(stored(one)) for one in run_dirs(study, copy)
        ]


def test_pandas_reads_the_lines(runs: list[Path], target: Tree) -> None:
    files = StudyFiles(target.study("test"))
    records, epochs = (
        pd.read_json(path, lines=True, precise_float=True) for path in (files.runs, files.epochs)
    )
    assert sorted(records["run_id"]) == sorted(one.name for one in runs)
    table = windows_table(target)
    warm = epochs[(epochs["phase"] == "train") & ~epochs["cold"]]
    assert warm.set_index("run_id")["wall_s"].to_dict() == (
        table.set_index("run_id")["wall_s"].astype(float).to_dict()
    )


def test_publishing_appends_and_twice_changes_nothing(runs: list[Path], target: Tree) -> None:
    before = files_of(target)
    stamps = [path.stat().st_mtime_ns for path in sorted(target.study("test").iterdir())]
    done = publish("test", results(), target)
    assert (done.new, sorted(done.unchanged)) == ([], sorted(one.name for one in runs))
    assert stamps == [path.stat().st_mtime_ns for path in sorted(target.study("test").iterdir())]
    write_study(STUDY.model_copy(update={"repeats": 4}), results())
    more = completed(repeat=3)
    assert publish("test", results(), target).new == [more.name]
    after = files_of(target)
    for name in ("runs.jsonl", "epochs.jsonl"):
        assert after[name].startswith(before[name])
        assert len(after[name]) > len(before[name])
    assert after["profiles.jsonl"] == before["profiles.jsonl"]


def test_a_folder_of_an_older_version_is_published_already(
    runs: list[Path], target: Tree, tmp_path: Path
) -> None:
    old = Tree(tmp_path / "old")
    as_folders(target, "test", old)
    done = publish("test", results(), old)
    assert (done.new, len(done.unchanged)) == ([], 3)
    assert not StudyFiles(old.study("test")).runs.exists()
    write_study(STUDY.model_copy(update={"repeats": 4}), results())
    more = completed(repeat=3)
    assert publish("test", results(), old).new == [more.name]
    assert len(runs_table(old)) == 4
    record = RunFiles(runs[0])
    write_record(record.directory, read_record(runs[0]).model_copy(update={"job_id": "17"}))
    with pytest.raises(RecordError, match="published before with other content"):
        publish("test", results(), old)


def test_a_run_in_both_forms_counts_once_or_not_at_all(runs: list[Path], target: Tree) -> None:
    copy = target.study("test") / runs[0].name
    shutil.copytree(runs[0], copy)
    assert len(runs_table(target)) == 3
    assert not any(run.damages for run in verify(target, "test"))
    write_record(copy, read_record(copy).model_copy(update={"job_id": "17"}))
    damaged = [run for run in verify(target, "test") if run.damages]
    assert [run.directory for run in damaged] == [copy]
    assert "with other content than its folder" in damaged[0].damages[0]


def test_a_publication_that_was_cut_off_is_completed(
    runs: list[Path], target: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process were killed after its first renames, those of profiles and epochs."""
    write_study(STUDY.model_copy(update={"repeats": 4}), results())
    more = completed(repeat=3)
    write_profile(more, empty_profile(more))
    whole = Tree(target.root.with_name("whole"))
    shutil.copytree(target.root, whole.root)
    before = files_of(target)
    publish("test", results(), whole)
    order: list[str] = []
    replace = Path.replace

    def killed(self: Path, to: Path) -> Path:
        if Path(to).name == "runs.jsonl":
            raise KeyboardInterrupt
        order.append(Path(to).name)
        return replace(self, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            publish("test", results(), target)
    assert order == ["profiles.jsonl", "epochs.jsonl"]
    cut = files_of(target)
    assert cut["runs.jsonl"] == before["runs.jsonl"]
    assert not [name for name in cut if name.endswith(".part")]
    found = {run.directory.name: run for run in verify(target, "test")}
    assert all(not found[one.name].damages for one in runs)
    assert "has no line of the run" in found[more.name].damages[0]
    publish("test", results(), target)
    assert files_of(target) == files_of(whole)


def test_two_cannot_publish_at_once(runs: list[Path], tmp_path: Path) -> None:
    tree = Tree(tmp_path / "data")
    with exclusive(tree.lock, "test"), pytest.raises(LaunchError, match="publishing to"):
        publish("test", results(), tree)
    assert not tree.runs.exists()


def test_a_large_file_is_not_published(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path / "data")
    monkeypatch.setattr(module, "LARGEST_FILE", 1000)
    with pytest.raises(RecordError, match=r"a published file has at most 0\.001 MB"):
        publish("test", results(), tree)
    monkeypatch.setattr(stored_module, "LONGEST_LINE", 1000)
    with pytest.raises(RecordError, match=r"its line of runs\.jsonl would be longer than"):
        publish("test", results(), tree)
    assert not tree.runs.exists()


def changed(name: str, number: int, change: Callable[[bytes], bytes]) -> Callable[[Tree], None]:
    def apply(tree: Tree) -> None:
        path = tree.study("test") / name
        lines = path.read_bytes().splitlines(True)
        lines[number] = change(lines[number])
        path.write_bytes(b"".join(lines))

    return apply


def with_number(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda text: text.replace(old, new)


# What is done to the lines of the first or last run: the damage, and how many rows are damaged.
DAMAGES: dict[str, tuple[Callable[[Tree], None], str, int]] = {
    "record cut": (
        changed("runs.jsonl", 0, lambda text: text[:400] + b"\n"),
        "runs.jsonl, line 1 is not valid JSON",
        1,
    ),
    "record gone": (
        changed("runs.jsonl", 0, lambda _: b""),
        "runs.jsonl: has no line of the run",
        1,
    ),
    "record no text": (
        changed("runs.jsonl", 0, lambda _: b"\xff\xfe\n"),
        "runs.jsonl, line 1 is not valid JSON",
        2,  # the line, and the epochs without a record
    ),
    "record twice": (changed("runs.jsonl", 0, lambda text: text * 2), "the run is there twice", 1),
    "record of another study": (
        changed("runs.jsonl", 0, with_number(b'"study":"test"', b'"study":"x"')),
        "a copied run would count twice",
        1,
    ),
    "last line cut": (
        changed("epochs.jsonl", 5, lambda text: text[:90]),
        "epochs.jsonl, line 6 is not valid JSON",
        1,
    ),
    "epoch gone": (changed("epochs.jsonl", 0, lambda _: b""), "lacks train of epoch 0", 1),
    "epoch changed": (
        changed("epochs.jsonl", 0, with_number(b'"wall_s":2.0', b'"wall_s":0.0')),
        "epochs.jsonl, line 1:",
        1,
    ),
    "epoch of nothing": (
        changed("epochs.jsonl", 0, lambda text: text + b"[]\n"),
        "line 2 holds list",
        1,
    ),
    "profile": (
        changed("profiles.jsonl", 0, with_number(b'"steps"', b'"step"')),
        "profiles.jsonl, line 1",
        1,
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_line_costs_its_run_only(name: str, target: Tree) -> None:
    damage, words, rows = DAMAGES[name]
    damage(target)
    before = files_of(target)
    table = runs_table(target)
    damaged = table[table["status"] == DAMAGED]
    assert len(damaged) == rows
    assert any(words in text for text in damaged["damage"])
    others = 3 if name == "epoch of nothing" else 2
    assert (table["status"] == "completed").sum() == others
    lines = [text for run in verify(target, "test") for text in run.lines()]
    assert any(words in text for text in lines)
    assert all(text.startswith(f"{target.study('test')}/") for text in lines)
    assert files_of(target) == before


def test_a_published_study_is_done_and_not_planned_again(runs: list[Path], target: Tree) -> None:
    study = read_study("test", target)
    assert study == STUDY
    before = files_of(target)
    items = plan(study, target)
    assert [item.state for item in items] == ["completed"] * 3
    assert files_of(target) == before
    study_file = target.root / "test.yaml"
    study_file.write_text(json.dumps(STUDY.model_dump(mode="json", exclude_defaults=True)))
    shown = ddl("study", "status", study_file, "--results", target.root, status=0).stdout
    assert "3 runs: 3 completed" in shown
    changed("epochs.jsonl", 0, lambda _: b"")(target)
    shown = ddl("study", "status", study_file, "--results", target.root, status=0).stdout
    assert "3 runs: 2 completed, 1 damaged" in shown


def test_a_run_goes_on_beside_lines(target: Tree) -> None:
    """Of a study that was copied from the published ones, the missing runs are planned."""
    more = STUDY.model_copy(update={"repeats": 4})
    items = plan(more, target)
    assert [item.state for item in items] == ["completed"] * 3 + ["planned"]
    finish(items[-1].directory)
    assert [item.state for item in ledger(more, target)] == ["completed"] * 4
    append_epoch(items[-1].directory, line(0))
    assert sum(bool(run.damages) for run in verify(target, "test")) == 1
