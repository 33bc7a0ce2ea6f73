"""Folders that environment variables name."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ddl_tools.records.paths import results


@pytest.mark.parametrize(
    ("variable", "folder"),
    [
        ("DDL_RESULTS", lambda: results().root),
        ("DDL_DATA", lambda: results().dataset("some").parent),
    ],
)
def test_a_relative_folder_is_resolved_once(
    variable: str, folder: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "mine")
    assert folder() == tmp_path / "mine"
    monkeypatch.chdir(other)
    assert folder() == tmp_path / "mine"


def test_child_processes_work_in_the_folders_of_their_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel or a job has another working directory; asking for one folder resolves both."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDL_RESULTS", "mine")
    monkeypatch.setenv("DDL_DATA", "images")
    results()
    assert os.environ["DDL_RESULTS"] == str(tmp_path / "mine")
    assert os.environ["DDL_DATA"] == str(tmp_path / "images")
