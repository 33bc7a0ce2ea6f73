"""What CI runs when an area has changed: nothing that is marked extended is out of reach."""

from pathlib import Path

import pytest

from tests.areas import AREAS, PROJECT, base, changed, selected
from tests.commands import output

DATES = {
    "old": "2026-01-01T00:00:00Z",
    "last": "2026-01-05T00:00:00Z",
    "new": "2026-01-05T08:00:00Z",
}


def test_every_extended_case_lies_in_an_area() -> None:
    files = [
        file
        for file in (PROJECT / "tests").rglob("test_*.py")
        if "mark.extended" in file.read_text() and file != Path(__file__)
    ]
    roots = [PROJECT / path for area in AREAS.values() for path in area.get("tests", [])]
    assert files
    assert [one for one in files if not any(one.is_relative_to(root) for root in roots)] == []


def test_every_path_and_target_of_an_area_is_there() -> None:
    named = [path for area in AREAS.values() for path in (*area["changed"], *area.get("tests", []))]
    assert [path for path in named if not (PROJECT / path).exists()] == []
    makefile = (PROJECT / "Makefile").read_text()
    targets = [one for area in AREAS.values() for one in area.get("targets", [])]
    assert [one for one in targets if f"\n{one}: " not in makefile] == []


@pytest.mark.parametrize(
    ("path", "tests", "targets"),
    [
        ("ddl_tools/launch/slurm/script.py", "tests/launch/slurm", ""),
        ("tests/launch/slurm/faults.py", "tests/launch/slurm", ""),
        ("tests/launch/slurm/test_job.py", "tests/launch/slurm/test_job.py", ""),
        ("requirements/constraints.txt", "", "instruction-sets"),
        ("requirements/libraries/keras.txt", "tests/frameworks", "libraries"),
    ],
)
def test_a_path_selects_its_area(path: str, tests: str, targets: str) -> None:
    found = selected([path])
    assert not tests or tests in found["tests"]
    assert not targets or targets in found["targets"]


def test_what_lies_in_no_area_selects_nothing() -> None:
    paths = ["LICENSE", "ddl_tools/analysis/tables.py", "tests/launch/slurm/test_script.py"]
    assert selected(paths) == {"tests": [], "targets": []}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three commits: one of days before, two of one day."""
    folder = tmp_path / "repository"
    git(folder.parent, "init", "--quiet", str(folder))
    for name, date in DATES.items():
        (folder / name).touch()
        git(folder, "add", name)
        git(folder, "commit", "--quiet", "-m", name, date=date)
    return folder


def git(folder: Path, *words: str, date: str = "2026-01-01T00:00:00Z") -> str:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    env |= {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    return output("git", *identity, *words, cwd=folder, env=env).strip()


def test_commits_that_origin_lacks_are_the_change(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(repository), str(clone))
    (clone / "own").touch()
    git(clone, "add", "own")
    git(clone, "commit", "--quiet", "-m", "own", date="2026-02-01T00:00:00Z")
    assert changed(base(clone), clone) == ["own"]


def test_without_a_branch_to_compare_with_a_day_is_the_change(repository: Path) -> None:
    assert changed(base(repository), repository) == ["last", "new"]


def test_python_whose_words_alone_differ_is_unchanged(repository: Path) -> None:
    for number, text in enumerate(('"""One."""\nsame = 1\n', '"""Two."""\nsame = 1  # now\n')):
        (repository / "words.py").write_text(text)
        (repository / "value.py").write_text(f"value = {number}\n")
        git(repository, "add", ".")
        git(repository, "commit", "--quiet", "-m", "more")
    assert changed("HEAD~1", repository) == ["value.py"]


def test_without_history_nothing_has_changed(tmp_path: Path) -> None:
    assert changed(base(tmp_path), tmp_path) == []
