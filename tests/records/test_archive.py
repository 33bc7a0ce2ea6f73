"""A file of records gives back what was packed; a hostile one ends in one message."""

import json
import os
import stat
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddl_core.errors import RecordError
from ddl_tools.cli import study as cli_study
from ddl_tools.records import archive
from ddl_tools.records.archive import pack, publish_file, unpack
from ddl_tools.records.ledger import read_study, write_study
from ddl_tools.records.paths import RunFiles, StudyFiles, Tree, committed, results
from ddl_tools.records.profiling import write_profile
from ddl_tools.records.publish import publish
from ddl_tools.records.run import append_epoch, read_record, read_rows, write_record
from ddl_tools.records.stored import has_profile, run_dirs, stored, values
from ddl_tools.study import Study
from tests.launch.running import TINY, ddl, finish, line, planned
from tests.records.test_damage import empty_profile

Members = dict[str, bytes]
COMMITTED = ("profile_laptop", "one_gpu", "libraries", "emulated_delays", "accuracy_laptop")


def completed(**fields: Any) -> Path:
    run_dir = planned(**fields)
    finish(run_dir, provenance={"git_dirty": False})
    return run_dir


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Return a file with two runs of the study `test`, one of them with a profile."""
    write_study(Study(name="test", question="?", base=TINY, repeats=2), results())
    run_dir, _ = completed(), completed(repeat=1)
    write_profile(run_dir, empty_profile(run_dir))
    path = tmp_path / "records.zip"
    pack(results(), ["test"], path)
    return path


def members(path: Path) -> Members:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def rewrite(path: Path, content: Members, **attributes: Any) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in content.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            for attribute, value in attributes.items():
                setattr(info, attribute, value)
            file.writestr(info, data)


def edit(name: str, change: Callable[[list[Any]], Any]) -> Callable[[Members], None]:
    """Change the lines of a member of the study `test`, as JSON."""

    def apply(content: Members) -> None:
        rows = [json.loads(text) for text in content[f"test/{name}"].splitlines()]
        change(rows)
        content[f"test/{name}"] = "".join(json.dumps(row) + "\n" for row in rows).encode()

    return apply


def put(name: str, data: bytes) -> Callable[[Members], None]:
    return lambda content: content.update({name: data})


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the bytes of all files below a folder, by relative path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_the_committed_studies_come_back_byte_by_byte(tmp_path: Path) -> None:
    source, target = committed(), Tree(tmp_path / "tree")
    there = [name for name in COMMITTED if run_dirs(name, source)]
    pack(source, there, tmp_path / "records.zip")
    assert (tmp_path / "records.zip").stat().st_size < archive.MOST_BYTES
    assert unpack(tmp_path / "records.zip", target) == sorted(there)
    profiles = 0
    for study in there:
        assert read_study(study, target) == read_study(study, source)
        if source.asked(study).exists():
            assert target.asked(study).read_bytes() == source.asked(study).read_bytes()
        folders = run_dirs(study, source)
        assert [path.name for path in run_dirs(study, target)] == [one.name for one in folders]
        for folder in folders:
            after = target.study(study) / folder.name
            assert read_record(after) == read_record(folder)
            rows = zip(read_rows(after), read_rows(folder), strict=True)
            assert all(repr(one) == repr(other) for one, other in rows)  # a NaN equals no NaN
            assert values(stored(after)) == values(stored(folder))
            profiles += has_profile(after)
    assert profiles


def test_the_same_records_give_the_same_bytes(packed: Path, tmp_path: Path) -> None:
    pack(results(), ["test"], tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()


def test_only_completed_runs_are_packed(packed: Path) -> None:
    planned(repeat=2)
    assert pack(results(), ["test"], packed, "a report") == 2
    content = members(packed)
    names = ["epochs.jsonl", "profiles.jsonl", "runs.jsonl", "study.json"]
    assert sorted(content) == ["report.md", *(f"test/{name}" for name in names)]
    assert content["test/runs.jsonl"].count(b"\n") == 2
    assert content["test/profiles.jsonl"].count(b"\n") == 1
    rows = [json.loads(text) for text in content["test/epochs.jsonl"].splitlines()]
    assert {row["run_id"] for row in rows} == {read_record(one).run_id for one in folders_of_two()}


def folders_of_two() -> list[Path]:
    return [one for one in run_dirs("test", results()) if read_rows(one)]


def test_a_study_without_a_completed_run_is_not_packed(tmp_path: Path) -> None:
    planned()
    with pytest.raises(RecordError, match="no completed run"):
        pack(results(), ["test"], tmp_path / "records.zip")
    assert not (tmp_path / "records.zip").exists()


def test_a_large_file_is_not_written(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed.unlink()
    monkeypatch.setattr(archive, "MOST_BYTES", 1000)
    with pytest.raises(RecordError, match="do not fit into one file"):
        pack(results(), ["test"], packed)
    assert not packed.exists()


def test_publishing_a_file_equals_publishing_its_study(packed: Path, tmp_path: Path) -> None:
    of_file, of_study = Tree(tmp_path / "of_file"), Tree(tmp_path / "of_study")
    first = publish_file(packed, of_file)["test"]
    publish("test", results(), of_study)
    assert len(first.new) == 2
    assert contents(of_file.root) == contents(of_study.root)
    again = publish_file(packed, of_file)["test"]
    assert (again.new, again.unchanged) == ([], first.new)
    assert publish("test", results(), of_file).new == []


def test_what_was_published_with_other_content_stays(packed: Path, tmp_path: Path) -> None:
    target = Tree(tmp_path / "data")
    publish_file(packed, target)
    run_dir = folders_of_two()[0]
    write_record(run_dir, read_record(run_dir).model_copy(update={"job_id": "17"}))
    completed(repeat=2)
    before = contents(target.root)
    pack(results(), ["test"], packed)
    with pytest.raises(RecordError, match="published before with other content"):
        publish_file(packed, target)
    assert contents(target.root) == before


def test_no_study_is_copied_if_another_one_cannot_be(packed: Path, tmp_path: Path) -> None:
    content = members(packed)
    for name in list(content):  # sorts before the study that is published already
        other = content[name].replace(b'"study":"test"', b'"study":"another"')
        content[name.replace("test/", "another/")] = other.replace(b'"test"', b'"another"')
    target = Tree(tmp_path / "data")
    publish_file(packed, target)
    rewrite(packed, content)
    record = StudyFiles(target.study("test")).runs
    record.write_text(record.read_text().replace('"job_id":null', '"job_id":"17"'))
    with pytest.raises(RecordError, match="published before with other content"):
        publish_file(packed, target)
    assert not target.study("another").exists()
    record.write_text(record.read_text().replace('"job_id":"17"', '"job_id":null'))
    assert [len(one.new) for one in publish_file(packed, target).values()] == [2, 0]


def test_the_definition_of_a_published_study_stays(packed: Path, tmp_path: Path) -> None:
    target = Tree(tmp_path / "data")
    publish_file(packed, target)
    before = target.asked("test").read_bytes()
    write_study(Study(name="test", question="Another?", base=TINY, repeats=2), results())
    pack(results(), ["test"], packed)
    with pytest.raises(RecordError, match="its definition of study 'test' is neither"):
        publish_file(packed, target)
    assert target.asked("test").read_bytes() == before


def test_the_command_takes_a_name_or_a_file(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_study, "committed", lambda: Tree(tmp_path / "data"))
    monkeypatch.setattr(cli_study, "repeated", lambda: Tree(tmp_path / "data").second())
    other_name = packed.rename(tmp_path / "from-a-friend")
    text = (
        "test: 2 published, 0 published before\n"
        "next: ddl figures; git add data figures docs README.md\n"
    )
    assert ddl("study", "publish", other_name, status=0).stdout == text
    assert ddl("study", "publish", "--second", other_name, status=0).stdout == text
    assert len(run_dirs("test", Tree(tmp_path / "data").second())) == 2
    text = "0 published, 2 published before\n"
    assert ddl("study", "publish", "test", status=0).stdout == text
    result = ddl("study", "publish", "nowhere.zip", status=1)
    assert "nowhere.zip: cannot be read: No such file" in result.stderr


# Of a file with a whole study `test`: how it is changed, and what the message names.
HOSTILE: dict[str, tuple[Callable[[Members], Any], str]] = {
    "parent": (put("../x/runs.jsonl", b"{}\n"), "unknown member '../x/runs.jsonl'"),
    "absolute": (put("/tmp/x/runs.jsonl", b"{}\n"), "unknown member '/tmp/x/runs.jsonl'"),
    "deeper": (put("test/x/run.json", b"{}"), "unknown member 'test/x/run.json'"),
    "capital": (put("Test/runs.jsonl", b"{}\n"), "unknown member 'Test/runs.jsonl'"),
    "control": (put("a\x1b[2J/runs.jsonl", b"{}\n"), r"unknown member 'a\x1b[2J/runs.jsonl'"),
    "long": (put("a" * 101 + "/runs.jsonl", b"{}\n"), "unknown member 'aaa"),
    "folder": (put("test/", b""), "member 'test/' is not a plain file"),
    "other file": (put("test/run.ipynb", b"{}"), "unknown member 'test/run.ipynb'"),
    "no study": (lambda content: content.clear(), "holds no study"),
    "no runs": (lambda content: content.pop("test/runs.jsonl"), "test/runs.jsonl is missing"),
    "many": (lambda content: content.update({f"a{n}": b"" for n in range(200)}), "at most 100"),
    "bomb": (put("report.md", bytes(101_000_000)), "101 MB unpacked; at most 100 MB"),
    "long line": (
        put("test/runs.jsonl", b"[" * 2_000_000),
        "test/runs.jsonl, line 1 is longer than 1 MB",
    ),
    "not JSON": (put("test/runs.jsonl", b"{\n"), "test/runs.jsonl, line 1 is not valid JSON"),
    "nested": (put("test/runs.jsonl", b"[" * 100_000), "line 1 is not valid JSON"),
    "empty line": (put("test/runs.jsonl", b"\n"), "line 1 is not valid JSON"),
    "no object": (put("test/runs.jsonl", b"[1]\n"), "line 1 holds list, not an object"),
    "encoding": (put("test/runs.jsonl", '{"é": 1}\n'.encode("latin-1")), "is not valid JSON"),
    "surrogate": (
        edit("runs.jsonl", lambda rows: rows[0].update(job_id="\ud800")),
        "is not valid JSON",
    ),
    "another spec": (
        edit("runs.jsonl", lambda rows: rows[0]["spec"].update(base_lr=9.0)),
        "its spec is not that of its run_id",
    ),
    "run ID a path": (
        edit("runs.jsonl", lambda rows: rows[0].update(run_id="../../x")),
        "test/runs.jsonl, line 1: run_id = '../../x' is no name of a run",
    ),
    "no version": (
        edit("runs.jsonl", lambda rows: rows[0].pop("schema_version")),
        "test/runs.jsonl, line 1 has schema version None",
    ),
    "unknown field": (edit("runs.jsonl", lambda rows: rows[0].update(x=1)), "x = 1: unknown field"),
    "control in a field": (
        edit("runs.jsonl", lambda rows: rows[0].update({"\x1b[2J": 1})),
        r"\x1b[2J = 1: unknown field",
    ),
    "unknown package": (
        edit("runs.jsonl", lambda rows: rows[0]["spec"].update(loader="evil")),
        "install the package with which it was measured",
    ),
    "another study": (
        edit("runs.jsonl", lambda rows: rows[0].update(study="laptop")),
        "of study 'laptop', in a folder of another name",
    ),
    "not completed": (
        edit("runs.jsonl", lambda rows: rows[0].update(status="running")),
        "status = 'running'; only completed runs",
    ),
    "run twice": (edit("runs.jsonl", lambda rows: rows.append(rows[0])), "is there twice"),
    "NaN": (edit("epochs.jsonl", lambda rows: rows[0].update(wall_s=float("nan"))), "wall_s = nan"),
    "large number": (edit("epochs.jsonl", lambda rows: rows[0].update(samples=10**400)), "samples"),
    "epoch of no run": (
        edit("epochs.jsonl", lambda rows: rows[0].update(run_id="../x")),
        "test/epochs.jsonl, line 1: run_id = '../x' is no name of a run",
    ),
    "epoch of a list": (
        edit("epochs.jsonl", lambda rows: rows[0].update(run_id=[])),
        "run_id = []",
    ),
    "epoch without run": (
        edit("epochs.jsonl", lambda rows: rows[0].pop("run_id")),
        "run_id = None",
    ),
    "epoch missing": (edit("epochs.jsonl", lambda rows: rows.pop()), "lacks eval of epoch 0"),
    "epoch twice": (edit("epochs.jsonl", lambda rows: rows.append(rows[0])), "more than once"),
    "no epochs": (lambda content: content.pop("test/epochs.jsonl"), "lacks train of epoch 0"),
    "profile twice": (edit("profiles.jsonl", lambda rows: rows.append(rows[0])), "is there twice"),
    "profile of no run": (
        edit("profiles.jsonl", lambda rows: rows[0].update(run_id="x")),
        "test/runs.jsonl: has no line of the run (run x)",
    ),
    "wrong profile": (edit("profiles.jsonl", lambda rows: rows[0].pop("steps")), "steps"),
    "definition of another": (
        lambda content: content.update(
            {"test/study.json": content["test/study.json"].replace(b'"test"', b'"other"')}
        ),
        "it is of study 'other'",
    ),
    "no definition": (put("test/study.json", b"{}"), "test/study.json:"),
    "large definition": (put("test/study.json", b" " * 2_000_000), "is larger than 1 MB"),
    "impossible definition": (
        lambda content: content.update(
            {"test/study.json": content["test/study.json"].replace(b"resnet8", b"magic")}
        ),
        "unknown model 'magic'",
    ),
}


def refused(path: Path, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish a file, which ends with one message and no file."""
    temporary, data = tmp_path / "temporary", tmp_path / "data"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr(cli_study, "committed", lambda: Tree(data))
    result = ddl("study", "publish", path, status=1)
    assert isinstance(result.exception, SystemExit)  # no other: that would be a traceback
    assert path.name in result.stderr
    assert message in result.stderr
    assert "\x1b" not in result.stderr
    assert str(temporary) not in result.stderr
    assert not data.exists()
    assert not [*temporary.iterdir()]


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused(
    case: str, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, message = HOSTILE[case]
    content = members(packed)
    change(content)
    rewrite(packed, content)
    refused(packed, message, tmp_path, monkeypatch)


ATTRIBUTES = {
    "link": ({"external_attr": (stat.S_IFLNK | 0o777) << 16}, "is not a plain file"),
    "device": ({"external_attr": (stat.S_IFCHR | 0o666) << 16}, "is not a plain file"),
    "bzip2": ({"compress_type": zipfile.ZIP_BZIP2}, "is encrypted, or no deflated file"),
}


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_a_member_of_another_kind_is_refused(
    case: str, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes, message = ATTRIBUTES[case]
    rewrite(packed, members(packed), **attributes)
    refused(packed, message, tmp_path, monkeypatch)


def test_a_member_that_is_there_twice_is_refused(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings(), zipfile.ZipFile(packed, "a") as file:
        warnings.simplefilter("ignore")
        file.writestr("test/runs.jsonl", b"{}\n")
    refused(packed, "member 'test/runs.jsonl' is there twice", tmp_path, monkeypatch)


def declared(size: int) -> Callable[[bytes], bytes]:
    """Return what makes the directory of an archive declare a wrong size of its first member."""

    def change(content: bytes) -> bytes:
        place = content.index(b"PK\x01\x02") + 24
        return content[:place] + size.to_bytes(4, "little") + content[place + 4 :]

    return change


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", "is not a file of records"),
    "text": (lambda content: b"no archive", "is not a file of records"),
    "cut": (lambda content: content[:-30], "is not a file of records"),
    "changed": (lambda content: content[:60] + b"\0" * 20 + content[80:], "is not a file of rec"),
    "declared smaller": (declared(10), "is not a file of records"),
    "declared large": (declared(10**9), "1,000 MB unpacked; at most 100 MB"),
    "large": (lambda content: content + bytes(10_000_001), "is larger than 10 MB"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_archive_is_refused(
    case: str, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, message = BROKEN[case]
    packed.write_bytes(change(packed.read_bytes()))
    refused(packed, message, tmp_path, monkeypatch)


def test_a_folder_or_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    (tmp_path / "folder.zip").mkdir()
    for name in ("pipe.zip", "folder.zip"):
        result = ddl("study", "publish", tmp_path / name, status=1)
        assert "cannot be read" in result.stderr


def test_a_diverged_loss_is_kept(packed: Path, tmp_path: Path) -> None:
    run_dir = planned(repeat=5)
    finish(run_dir, provenance={"git_dirty": False})
    RunFiles(run_dir).epochs.write_bytes(b"")
    for phase in ("train", "eval"):
        append_epoch(run_dir, line(0, phase, loss=float("nan")))
    results().asked("test").unlink()  # which does not plan this run
    pack(results(), ["test"], packed)
    unpack(packed, Tree(tmp_path / "tree"))
    copy = stored(Tree(tmp_path / "tree").study("test") / run_dir.name)
    assert values(copy) == values(stored(run_dir))
