"""Which code, and which packages of other versions than were asked for."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ddl_tools.records import provenance
from ddl_tools.records.paths import PROJECT
from tests.commands import output, stub

GIT = shutil.which("git") or "git"
ASK = "import json; from ddl_tools.commit import code; print(json.dumps(code()))"


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    return output(GIT, "-C", folder, *names, *words).strip()


def checkout(folder: Path) -> Path:
    """Make a repository with one commit."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    git(folder, "commit", "--quiet", "--allow-empty", "--message=x")
    return folder


def copy(folder: Path) -> Path:
    """Copy the code, without its repository."""
    for name in ("ddl_core", "ddl_tools"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / name, folder / name, ignore=ignored)
    return folder


def committed(folder: Path) -> str:
    """Commit all files of a repository; return the commit."""
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=y")
    return git(folder, "rev-parse", "HEAD")


def code_of(folder: Path, **variables: object) -> dict[str, Any]:
    """Return what the code in a folder says of itself."""
    env = {name: value for name, value in os.environ.items() if name != "DDL_COMMIT"}
    return json.loads(
        output(sys.executable, "-c", ASK, cwd=folder, env=env, PYTHONPATH=folder, **variables)
    )


def test_the_commit_is_that_of_the_code(tmp_path: Path) -> None:
    folder = copy(checkout(tmp_path / "own"))
    head, other = committed(folder), checkout(tmp_path / "other")
    known = {"git_commit": head, "git_dirty": False, "git_missing": None}
    assert code_of(folder, DDL_COMMIT="0123abcd") == known
    inherited = {"GIT_DIR": other / ".git", "GIT_WORK_TREE": other}  # as in a hook of git
    assert code_of(folder, **inherited) == known
    with (folder / "ddl_core" / "__init__.py").open("a") as file:
        file.write("# changed\n")
    assert code_of(folder) == {**known, "git_dirty": True}


def test_a_repository_in_which_the_code_merely_lies_does_not_name_it(tmp_path: Path) -> None:
    outer = checkout(tmp_path / "outer")
    folder = copy(outer / "ddl")
    found = code_of(folder)
    assert (found["git_commit"], found["git_dirty"]) == (None, None)
    assert "does not track it" in found["git_missing"]
    named = code_of(folder, DDL_COMMIT="0123abcd")
    assert named == {**found, "git_commit": "0123abcd"}
    head = committed(outer)  # a repository that contains this project, too
    (outer / "notes").write_text("of another part\n")
    git(outer, "add", "notes")
    assert code_of(folder) == {"git_commit": head, "git_dirty": False, "git_missing": None}


def test_the_checkout_of_a_colleague_is_known_by_its_commit(tmp_path: Path) -> None:
    folder = copy(checkout(tmp_path / "theirs"))
    head = committed(folder)
    foreign = tmp_path / "bin" / "git"
    stub(foreign, f'#!/bin/sh\nGIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec {GIT} "$@"\n')
    path = f"{foreign.parent}{os.pathsep}{os.environ['PATH']}"
    assert code_of(folder, PATH=path)["git_commit"] == head
    nested = copy(folder / "nested")
    assert "does not trust the owner" in code_of(nested, PATH=path)["git_missing"]


def test_a_record_says_why_there_is_no_commit(tmp_path: Path) -> None:
    folder = copy(tmp_path / "download")
    assert "in no git repository" in code_of(folder)["git_missing"]
    assert code_of(folder, PATH=tmp_path)["git_missing"] == "git is not installed"
    stub(tmp_path / "git", "#!/bin/sh\nexit 3\n")
    assert "status 3" in code_of(folder, PATH=tmp_path)["git_missing"]


def test_packages_of_another_version_are_named() -> None:
    packages = {"torch": "2.11.0+cu130", "torchvision": "0.28.0+cpu", "nobody-pins-this": "1"}
    (told,) = provenance._not_pinned(packages, "torch")
    assert told.startswith("torch 2.11.0+cu130 (")


def test_each_library_has_pins_of_its_own() -> None:
    packages = {"tensorflow-cpu": "2.15.0", "numpy": "1.26.4"}
    assert provenance._not_pinned(packages, "tensorflow") == ["tensorflow-cpu 2.15.0 (2.15.1)"]
    assert any(
        told.startswith("numpy 1.26.4 (") for told in provenance._not_pinned(packages, "torch")
    )


def test_modules_that_the_environment_does_not_have_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert provenance.provenance()["from_outside"] == []
    (tmp_path / "numpy.py").touch()
    (tmp_path / "my_model.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert provenance.provenance()["from_outside"] == ["numpy"]
