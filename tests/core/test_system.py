"""What is trusted lies in folders that only this user can write to; nothing outlives its owner."""

import os
import stat
from pathlib import Path

import pytest

from ddl_core import system
from ddl_core.errors import LaunchError
from ddl_tools import processes


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory that others may write to, with a path that leaves room for sockets."""
    monkeypatch.setattr(processes, "MAX_LENGTH", 200)
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setenv(system.TEMPORARY, str(place))
    return place


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_for_this_user_alone_whatever_the_umask_is(temporary: Path) -> None:
    before = os.umask(0)
    try:
        folder = system.kept("caches")
    finally:
        os.umask(before)
    assert mode(folder) == mode(folder.parent) == 0o700
    assert system.kept("caches") == folder


@pytest.mark.parametrize("allowed", [0o755, 0o770, 0o707, 0o720])
def test_a_folder_that_is_open_to_others_is_refused(temporary: Path, allowed: int) -> None:
    system.kept("caches").chmod(allowed)
    with pytest.raises(LaunchError, match=r"alone .mode 0700.*chmod 700"):
        system.kept("caches")


def test_a_link_is_refused_even_to_a_folder_of_this_user(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (temporary / f"ddl-{os.geteuid()}").symlink_to(tmp_path / "mine")
    for use in (lambda: system.kept("caches"), processes.Passing):
        with pytest.raises(LaunchError, match=r"\(lrwx.* is not a folder of user"):
            use()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_another_users_folder_is_refused(temporary: Path) -> None:
    os.chown(system.kept("caches"), 12345, -1)
    with pytest.raises(LaunchError, match=r"of user 12345. is not a folder of user 0 alone"):
        system.kept("caches")


@pytest.fixture
def taken(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The name of this user's folder, which another user has taken."""
    folder = temporary / f"ddl-{os.geteuid()}"
    folder.mkdir()
    plain = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        found = plain(path)
        return os.stat_result([*found[:4], 12345, *found[5:]]) if path == folder else found

    monkeypatch.setattr(Path, "lstat", lstat)
    return folder


def test_where_another_user_has_taken_the_name_the_systems_folder_is_used(
    taken: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert system.kept("caches").parent == tmp_path / taken.name
    with processes.Passing() as name:
        assert Path(name).parent == tmp_path / taken.name


def test_else_it_is_a_new_folder_which_other_processes_find(
    taken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    folder = system.kept("caches")
    assert folder.parents[2] == taken.parent
    assert mode(folder.parents[1]) == 0o700
    assert system.kept("caches") == folder
    assert system.temporary() == folder.parents[1]


def test_what_a_killed_process_left_is_removed_later(temporary: Path) -> None:
    base = temporary / f"ddl-{os.geteuid()}"
    held, here = processes.Passing(), [base / name for name in ("p-old", "p-new", "mine")]
    for folder in here:
        folder.mkdir()
    for folder in (Path(held.name), base / "p-old", base / "mine"):
        os.utime(folder, (0, 0))
    with processes.Passing():
        assert [folder.exists() for folder in here] == [False, True, True]
        assert Path(held.name).exists()
    held.cleanup()


def test_a_folder_that_cannot_be_made_says_what_to_do(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(system.TEMPORARY, str(tmp_path / "file"))
    for use in (lambda: system.kept("caches"), processes.Passing):
        with pytest.raises(LaunchError, match=r"cannot make the folder.*with TMPDIR"):
            use()


def test_a_sites_folder_for_caches_is_checked_likewise(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv(processes.CACHES, str(tmp_path / "scratch" / "caches"))
    assert mode(processes.caches()) == 0o700
    processes.caches().chmod(0o775)
    with pytest.raises(LaunchError, match="drwxrwxr-x"):
        processes.caches()


def test_a_passing_folder_goes_with_its_block(temporary: Path) -> None:
    with processes.Passing() as name:
        (Path(name) / "socket").touch()
        assert mode(Path(name)) == 0o700
        with processes.Passing() as other:
            assert other != name
            assert Path(name, "socket").exists()
    assert not list((temporary / f"ddl-{os.geteuid()}").iterdir())


def test_a_fork_does_not_remove_the_folder_of_its_parent(temporary: Path) -> None:
    held = processes.Passing()
    child = os.fork()
    if child == 0:
        held.cleanup()
        os._exit(0)
    os.waitpid(child, 0)
    assert Path(held.name).is_dir()
    held.cleanup()
    assert not Path(held.name).exists()


def test_what_processes_keep_is_found_beside_the_temporary_directory_of_their_own(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = system.kept("caches")
    for name, value in processes.temporary_in(str(temporary / "of a run")).items():
        monkeypatch.setenv(name, value)
    assert os.environ["TMPDIR"] == str(temporary / "of a run")
    assert system.kept("caches") == found
