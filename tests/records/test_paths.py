"""Folders that environment variables name."""

import os
from pathlib import Path

import pytest

from ddl_core.errors import RecordError
from ddl_tools.records.paths import portable, results


def test_relative_folders_are_resolved_once_for_child_processes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel or a job has another working directory; asking for one folder resolves both."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDL_RESULTS", "mine")
    monkeypatch.setenv("DDL_DATA", "images")
    assert results().root == tmp_path / "mine"
    assert os.environ["DDL_RESULTS"] == str(tmp_path / "mine")
    assert os.environ["DDL_DATA"] == str(tmp_path / "images")
    monkeypatch.chdir("/")
    assert results().root == tmp_path / "mine"
    assert results().dataset("some").parent == tmp_path / "images"


def test_a_folder_that_a_record_cannot_name_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"na\xefve")
    folder.mkdir()
    with pytest.raises(RecordError, match=r"is not UTF-8, and a record cannot name it") as refused:
        portable(folder / "images")
    assert "\n" not in str(refused.value)
