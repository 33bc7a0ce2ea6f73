"""A release can be cited, and its archive alone redraws the figures."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from ddl_core import __version__
from ddl_tools.records.paths import PROJECT

CHECK = PROJECT / ".ci" / "release.py"
FILES = (
    *("CITATION.cff", ".zenodo.json", "pyproject.toml", "CHANGELOG.md"),
    "ddl_core/__init__.py",
)
URL, DOI = "https://example.org/ddl", "10.5281/zenodo.1"
STUDY = "laptop_loaders"
MARK = "FILL-IN-"  # begins each placeholder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that a release is checked by, as they are."""
    folder = tmp_path / "copy"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PROJECT / name, folder / name)
    return folder


@pytest.fixture
def filled(copy: Path) -> Path:
    """The same files, filled in by a maintainer."""
    for name in ("CITATION.cff", "pyproject.toml"):
        text = (copy / name).read_text()
        text = re.sub(rf"^# (?=[a-z-]+(:| =) .*{MARK})", "", text, flags=re.MULTILINE)
        text = re.sub(rf"^# {MARK}.*\n", "", text, flags=re.MULTILINE)
        text = text.replace("name: The ddl authors", "{family-names: Doe, given-names: Jo}")
        (copy / name).write_text(_filled_in(text))
    path = copy / ".zenodo.json"
    path.write_text(_filled_in(path.read_text().replace(f"{MARK}AUTHORS", "Doe, Jo")))
    return copy


def _filled_in(text: str) -> str:
    return text.replace(f"{MARK}REPOSITORY-URL", URL).replace(f"{MARK}DOI", DOI)


def check(folder: Path) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode, (done.stdout + done.stderr).splitlines()


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_version_and_licence_are_the_same_everywhere() -> None:
    """What the check demands besides placeholders holds at each commit."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "ddl_core.__version__"
    cited = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    deposited = json.loads((PROJECT / ".zenodo.json").read_text())
    (newest, *_) = re.findall(r"^## (\S+)", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert {cited["version"], deposited["version"], newest} == {__version__}
    assert cited["license"] == deposited["license"] == project["project"]["license"]


def test_each_placeholder_is_named_and_refused(copy: Path) -> None:
    path = copy / "CHANGELOG.md"
    path.write_text(f"{path.read_text()}\n{MARK}SOMETHING\n")
    status, lines = check(copy)
    assert status == 1
    for name in FILES:
        for one in re.findall(f"{MARK}[A-Z-]+", (copy / name).read_text()):
            assert any(line.startswith(f"{name}: {one} ") for line in lines)


def test_a_release_without_placeholders_passes(filled: Path) -> None:
    assert check(filled) == (0, [f"ready for release {__version__}"])


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("CITATION.cff", f"version: {__version__}", "version: 9.9.9", "CITATION.cff: version 9.9"),
        (".zenodo.json", __version__, "9.9.9", ".zenodo.json: version 9.9.9"),
        ("CHANGELOG.md", f"## {__version__}", "## 9.9.9", "CHANGELOG.md: version 9.9.9"),
        ("ddl_core/__init__.py", __version__, "9.9.9", "but ddl_core has 9.9.9"),
        (".zenodo.json", "{author}", "Doe, Al", "differ in their authors"),
        ("CITATION.cff", "license: Apache-2.0", "license: MIT", "differ in license"),
        ("pyproject.toml", "{url}", "https://example.org/other", "differ in the URL"),
        ("CITATION.cff", "doi: {doi}", "", "has no doi"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    filled: Path, name: str, old: str, new: str, words: str
) -> None:
    cited = yaml.safe_load((filled / "CITATION.cff").read_text())
    author = json.loads((filled / ".zenodo.json").read_text())["creators"][0]["name"]
    values = {"url": cited["repository-code"], "doi": cited["doi"], "author": author}
    change(filled / name, old.format(**values), new)
    status, lines = check(filled)
    assert status == 1
    assert any(words in line for line in lines)


def test_a_release_is_a_commit_without_a_tag(filled: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(["git", "-C", filled, *who, *words], check=True, capture_output=True)

    git("init")
    git("add", ".")
    assert any("changes without a commit" in line for line in check(filled)[1])
    git("commit", "-m", "release")
    assert check(filled)[0] == 0
    git("tag", f"v{__version__}")
    assert any("raise the version" in line for line in check(filled)[1])


@pytest.mark.slow
@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="an archive has no history")
def test_the_archive_alone_redraws_the_figures(tmp_path: Path) -> None:
    packed = subprocess.run(
        ["git", "-C", PROJECT, "archive", "HEAD"], check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", tmp_path], input=packed, check=True)
    place = tmp_path / "figures" / STUDY
    committed = {path.name: path.read_bytes() for path in place.glob("*.csv")}
    assert committed
    shutil.rmtree(place)
    hidden = ("DDL_", "PYTHON", "GIT_")
    clean = {name: text for name, text in os.environ.items() if not name.startswith(hidden)}
    subprocess.run(
        [sys.executable, "-m", "ddl_tools.cli", "figures", "--study", STUDY],
        cwd=tmp_path,
        env=clean | {"PYTHONPATH": str(tmp_path)},
        check=True,
    )
    assert {path.name: path.read_bytes() for path in place.glob("*.csv")} == committed
