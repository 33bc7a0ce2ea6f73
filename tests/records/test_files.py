"""Files below a folder of results: links, devices, sizes, and what is the user's own."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import RecordError
from ddl_core.files import open_to_append, refuse_odd_files, replacing
from ddl_tools.emulation.counters import read_links
from ddl_tools.launch.diagnose import tail
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.launch.slurm.submit import _link
from ddl_tools.records.damage import examine
from ddl_tools.records.ledger import exclusive, read_study
from ddl_tools.records.paths import EmulationFiles, ProbeFiles, RunFiles, StudyFiles, Tree
from ddl_tools.records.probe import read_answers, read_probe
from ddl_tools.records.profiling import read_profile
from ddl_tools.records.progress import read_progress
from ddl_tools.records.run import RunRecord, append_epoch, read_record, read_rows, write_record
from ddl_tools.records.storage import write_atomically
from ddl_tools.records.stored import run_dirs
from tests.launch.running import line

ODD: dict[str, Callable[[Path, Path], object]] = {
    "a link": lambda path, own: path.symlink_to(own),
    "a fifo": lambda path, own: os.mkfifo(path),
    "a device": lambda path, own: path.symlink_to("/dev/zero"),
    "a folder": lambda path, own: path.mkdir(),
    "a huge file": lambda path, own: (path.touch(), os.truncate(path, 10**11)),
}
READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "record": (lambda run: RunFiles(run).record, read_record),
    "epochs": (lambda run: RunFiles(run).epochs, read_rows),
    "profile": (lambda run: RunFiles(run).profile, read_profile),
    "probe": (lambda run: ProbeFiles(run).record, read_probe),
    "answer": (lambda run: ProbeFiles(run).answer(0), read_answers),
    "links": (lambda run: EmulationFiles(run).links, lambda run: read_links(EmulationFiles(run))),
    "runs": (
        lambda run: StudyFiles(run.parent).runs,
        lambda run: run_dirs(run.parent.name, Tree(run.parents[2])),
    ),
}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "results")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a file of the user's."""
    path = tmp_path / "thesis.txt"
    path.write_text("one line without an end")
    return path


def planned(tree: Tree) -> Path:
    record = RunRecord.plan("test", RunSpec(epochs=3, loader="synthetic"))
    run_dir = tree.study("test") / record.run_id
    write_record(run_dir, record)
    return run_dir


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", READERS)
def test_what_is_no_plain_file_is_refused_at_once(
    tree: Tree, own: Path, kind: str, odd: str
) -> None:
    run_dir = planned(tree)
    file, read = READERS[kind]
    path = file(run_dir)
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    ODD[odd](path, own)
    with pytest.raises(RecordError, match=r"plain file|symbolic link|larger than"):
        read(run_dir)


@pytest.mark.parametrize("odd", ODD)
def test_progress_and_study_that_are_no_plain_files_are_none(
    tree: Tree, own: Path, odd: str
) -> None:
    run_dir = planned(tree)
    ODD[odd](RunFiles(run_dir).progress, own)
    ODD[odd](tree.asked("test"), own)
    assert read_progress(run_dir) is None
    assert read_study("test", tree) is None


@pytest.mark.parametrize("level", ["runs", "runs/test", "runs/test/RUN"])
def test_no_linked_folder_below_the_root_is_read_or_written(
    tree: Tree, tmp_path: Path, level: str
) -> None:
    run_dir = planned(tree)
    place = tree.root / level.replace("RUN", run_dir.name)
    elsewhere = tmp_path / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    if place == run_dir:  # of one run, the others are read
        assert run_dirs("test", tree) == [run_dir]
    else:
        with pytest.raises(RecordError, match=f"{place} is a symbolic link to {elsewhere}"):
            run_dirs("test", tree)
    assert "symbolic link" in examine(run_dir).reason
    lock = RunFiles(run_dir).lock
    for write in (
        lambda: append_epoch(run_dir, line(0)),
        lambda: planned(tree),
        exclusive(lock, "the run").__enter__,
    ):
        with pytest.raises(RecordError, match="--results DIR"):
            write()
    assert sorted(elsewhere.rglob("*")) == before


def test_the_root_itself_and_what_is_above_it_may_be_links(tmp_path: Path) -> None:
    place = tmp_path / "disk" / "results"
    place.mkdir(parents=True)
    (tmp_path / "disk_2").symlink_to(tmp_path / "disk")
    (tmp_path / "results").symlink_to(tmp_path / "disk_2" / "results")
    tree = Tree(tmp_path / "results")
    run_dir = planned(tree)
    append_epoch(run_dir, line(0))
    assert run_dirs("test", tree) == [run_dir]
    assert len(read_rows(run_dir)) == 1


def test_epochs_that_are_a_link_leave_the_file_that_it_leads_to(tree: Tree, own: Path) -> None:
    run_dir = planned(tree)
    RunFiles(run_dir).epochs.symlink_to(own)
    with pytest.raises(RecordError, match="symbolic link"):
        append_epoch(run_dir, line(0))
    assert own.read_text() == "one line without an end"


def test_epochs_with_a_second_name_leave_the_content_of_that(tree: Tree, own: Path) -> None:
    run_dir = planned(tree)
    os.link(own, RunFiles(run_dir).epochs)
    append_epoch(run_dir, line(0))
    assert own.read_text() == "one line without an end"
    assert len(read_rows(run_dir)) == 1


def test_a_file_that_is_replaced_leaves_a_link_of_its_name(tree: Tree, own: Path) -> None:
    path = tree.root / "tables" / "test.csv"
    path.parent.mkdir(parents=True)
    path.symlink_to(own)
    with pytest.raises(RecordError, match="symbolic link"):
        write_atomically(path, "new")
    assert path.is_symlink()
    assert own.read_text() == "one line without an end"


@pytest.mark.parametrize(
    "name", ["logs", "checkpoint.pt", ".run.part.ipynb", "logs/attempt_0/stdout.log"]
)
@pytest.mark.parametrize("odd", ["a link", "a fifo"])
def test_a_run_does_not_start_in_a_folder_with_links(
    tree: Tree, own: Path, name: str, odd: str
) -> None:
    run_dir = planned(tree)
    path = run_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    ODD[odd](path, own)
    with pytest.raises(RecordError, match=r"symbolic link|plain file"):
        run_ranks(run_dir)
    assert own.read_text() == "one line without an end"


def test_the_log_of_a_shared_job_is_read_where_the_launcher_linked_it(
    tree: Tree, own: Path
) -> None:
    first, second, third = (tree.study("test") / name / "logs" for name in ("a", "b", "c"))
    for folder in (first, second, third):
        folder.mkdir(parents=True)
    log = first / "slurm-7.log"
    log.write_text("the reason\n")
    _link(second / log.name, log)
    (third / log.name).symlink_to(own)
    refuse_odd_files(second.parent)
    assert "the reason" in tail(second / log.name)
    with pytest.raises(OSError, match="symbolic link"):
        refuse_odd_files(third.parent)
    assert tail(third / log.name) == ""


def test_a_renamed_run_is_to_be_renamed_back(tree: Tree) -> None:
    run_dir = planned(tree)
    new = run_dir.rename(run_dir.with_name("best"))
    (text,) = examine(new).lines()
    assert f"test/best, back to test/{run_dir.name}" in text


def test_two_writers_of_a_file_have_files_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with replacing(path) as one:
        one.write(b"one")
        with replacing(path) as two:  # another node, with this process's number
            two.write(b"two")
    assert path.read_bytes() == b"one"
    assert [*tmp_path.iterdir()] == [path]


def test_a_new_file_and_its_name_outlive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "a.json", []

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append((is_folder, path.read_text()))

    path.write_text("old")
    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(path, "new")
    assert synced == [(False, "old"), (True, "new")]


def test_appending_makes_a_file_that_others_may_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with open_to_append(path) as file:
        file.write(b"1\n")
    with replacing(tmp_path / "b.txt"):
        pass
    (tmp_path / "c.txt").touch()
    assert len({one.stat().st_mode for one in tmp_path.iterdir()}) == 1
