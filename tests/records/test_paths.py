"""Folders that environment variables name."""

import os
from pathlib import Path

import pytest

from ddl_tools.records.paths import results


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
