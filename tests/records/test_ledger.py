"""What became of each run, and who may work on it."""

import errno
import fcntl
import os
import threading

import pytest
from filelock import FileLock

from ddl_core.errors import LaunchError, RecordError, SpecError
from ddl_core.files import cannot_write
from ddl_tools.records.ledger import counts, exclusive, is_locked, ledger, plan, put_aside
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.run import read_record
from ddl_tools.study import Study
from tests.launch.running import change

STUDY = Study(name="s", question="?", axes={"loader": ["native", "synthetic"]}, repeats=2)


def test_planning_writes_each_run_once_and_never_touches_a_finished_one(tmp_path):
    tree = Tree(tmp_path)
    assert counts(ledger(STUDY, tree)) == "4 runs: 4 missing"
    change(plan(STUDY, tree)[0], status="completed")
    assert counts(plan(STUDY, tree)) == "4 runs: 1 completed, 3 planned"


def test_another_study_of_the_same_name_is_refused(tmp_path):
    tree = Tree(tmp_path)
    change(plan(STUDY, tree)[0], status="completed")
    before = tree.asked("s").read_bytes()
    other = Study(name="s", question="another?", axes={"epochs": [7, 8]}, repeats=1)
    with pytest.raises(SpecError, match=r"'s'.*1 completed runs.*another name"):
        plan(other, tree)
    assert tree.asked("s").read_bytes() == before
    assert counts(ledger(other, tree)) == "2 runs: 2 missing"


def test_a_corrected_study_is_planned_and_its_old_runs_are_put_aside(tmp_path):
    tree = Tree(tmp_path)
    plan(STUDY, tree)
    assert put_aside("s", tree) == ""
    entries = plan(Study(name="s", question="?", base={"eval_images": 6}, repeats=1), tree)
    assert counts(entries) == "1 run: 1 planned"
    said = put_aside("s", tree)
    assert said.startswith("4 further runs in ")
    assert STUDY.expand()[0].run_id in said
    assert entries[0].spec.run_id not in said


def test_a_study_that_is_extended_keeps_its_runs(tmp_path):
    tree = Tree(tmp_path)
    change(plan(STUDY, tree)[0], status="completed")
    plan(STUDY.model_copy(update={"repeats": 3, "question": "more?"}), tree)
    assert put_aside("s", tree) == ""


def test_the_name_of_single_runs_is_no_studys():
    with pytest.raises(ValueError, match=r"'adhoc'.*another name"):
        Study(name="adhoc", question="?")


def test_the_data_folder_is_planned_for_real_data_only(tmp_path):
    entries = plan(STUDY, Tree(tmp_path), tmp_path / "imagenet")
    folders = {entry.spec.loader: read_record(entry.directory).data_dir for entry in entries}
    assert folders == {"native": str(tmp_path / "imagenet"), "synthetic": None}


def test_running_without_a_process_is_interrupted(tmp_path):
    tree = Tree(tmp_path)
    entry = plan(STUDY, tree)[0]
    change(entry, status="running")
    assert ledger(STUDY, tree)[0].state == "interrupted"
    with exclusive(RunFiles(entry.directory).lock, "the run"):
        assert ledger(STUDY, tree)[0].state == "running"


def test_a_lock_is_refused_at_once_and_freed_at_the_end(tmp_path):
    lock = tmp_path / "a" / ".lock"
    with (
        exclusive(lock, "study s"),
        pytest.raises(LaunchError, match="study s is being run"),
        exclusive(lock, "study s"),
    ):
        pass
    assert not is_locked(lock.parent)


def test_a_look_at_a_lock_does_not_keep_a_run_from_starting(tmp_path):
    lock = tmp_path / ".lock"
    look = FileLock(lock, thread_local=False)
    look.acquire()
    threading.Timer(0.2, look.release).start()
    with exclusive(lock, "run r"):
        assert not look.is_locked


def test_a_look_at_a_lock_needs_no_permission_to_write(tmp_path, monkeypatch):
    plain = os.open

    def read_only(path, flags, *mode, **where):
        if str(path).endswith(".lock") and flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return plain(path, flags, *mode, **where)

    with exclusive(tmp_path / ".lock", "run r"):
        monkeypatch.setattr(os, "open", read_only)
        assert is_locked(tmp_path) is True
        monkeypatch.undo()
    monkeypatch.setattr(os, "open", read_only)
    assert is_locked(tmp_path) is False


def test_a_run_whose_lock_cannot_be_read_is_neither_running_nor_interrupted(tmp_path, monkeypatch):
    tree = Tree(tmp_path)
    item = plan(STUDY, tree)[0]
    change(item, status="running")
    plain = os.open

    def denied(path, *arguments, **where):
        if str(path).endswith(".lock"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return plain(path, *arguments, **where)

    monkeypatch.setattr(os, "open", denied)
    found = ledger(STUDY, tree)[0]
    assert (found.state, found.category) == ("unknown", None)
    assert "lock cannot be read" in found.reason


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO, errno.ENOSYS])
def test_on_a_file_system_without_locks_the_file_is_the_lock(tmp_path, monkeypatch, number):
    def refuse(*_arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = tmp_path / ".lock"
    for _ in range(2):
        with exclusive(lock, "study s"):
            assert is_locked(tmp_path)
            with (
                pytest.raises(LaunchError, match="study s is being run"),
                exclusive(lock, "study s"),
            ):
                pass
        assert not lock.exists()
        assert is_locked(tmp_path) is False


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "writable"), (errno.EIO, "choose another")],
)
def test_advice_fits_the_reason_why_nothing_can_be_written(tmp_path, number, advice):
    said = str(cannot_write(tmp_path, OSError(number, os.strerror(number))))
    assert advice in said
    assert ("free some space" in said) == (number == errno.ENOSPC)


def test_a_lock_below_a_file_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="--results"), exclusive(tmp_path / "file" / "x", "s"):
        pass
