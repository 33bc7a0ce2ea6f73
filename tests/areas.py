"""What CI has to run beside `make test`: print it for the paths that the commits at hand change.

    python -m tests.areas [BASE]

Without BASE the commits are those that origin's branch lacks; where it has them all, those of the
day before the newest one, first parents only. Where there is no history, nothing has changed.
A Python file whose comments and docstrings alone differ counts as unchanged.
"""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
AREAS: dict[str, dict[str, Any]] = tomllib.loads((PROJECT / "tests" / "areas.toml").read_text())
DAY_S = 24 * 3600


def git(*words: str, at: Path = PROJECT) -> str:
    """Return what git says; nothing where it fails."""
    done = subprocess.run(["git", "-C", str(at), *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def base(at: Path = PROJECT) -> str:
    """Return the commit to compare with; nothing where there is none."""
    head, landed = git("rev-parse", "HEAD", at=at), git("merge-base", "HEAD", "origin/HEAD", at=at)
    if landed and landed != head:
        return landed
    newest = git("log", "-1", "--format=%ct", at=at)
    if not newest:
        return ""
    before = f"--before={int(newest) - DAY_S}"
    earlier = git("rev-list", "-1", "--first-parent", before, "HEAD", at=at)
    return earlier or git("rev-list", "--first-parent", "HEAD", at=at).split("\n")[-1]


def changed(since: str, at: Path = PROJECT) -> list[str]:
    """Return the paths whose content, of Python files the code, differs between two commits."""
    paths = git("diff", "--name-only", since, "HEAD", at=at).splitlines() if since else []
    return [path for path in paths if not (path.endswith(".py") and same_code(path, since, at))]


def same_code(path: str, since: str, at: Path) -> bool:
    """Say whether a Python file has the same code in a commit and in this one."""
    before, now = (git("show", f"{commit}:{path}", at=at) for commit in (since, "HEAD"))
    return bool(before and now) and code(before) == code(now)


def code(text: str) -> str:
    """Return the syntax of Python source without comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def selected(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the ``tests`` and the ``targets`` of the areas that these paths lie in.

    A changed test file selects itself alone if it has extended cases, a changed helper all tests
    beside it.
    """
    found: dict[str, dict[str, None]] = {"tests": {}, "targets": {}}
    places = [PurePosixPath(path) for path in paths]
    for area in AREAS.values():
        own = any(place.is_relative_to(root) for place in places for root in area["changed"])
        roots = area.get("tests", [])
        tests = roots if own else [one for root in roots for one in changed_tests(places, root)]
        found["tests"] |= dict.fromkeys(tests)
        if own or tests:
            found["targets"] |= dict.fromkeys(area.get("targets", []))
    return {kind: list(chosen) for kind, chosen in found.items()}


def changed_tests(places: Iterable[PurePosixPath], root: str) -> Iterator[str]:
    """Yield what changed paths below `root` ask to test: a test file, or all of `root`."""
    for place in places:
        if place.is_relative_to(root):
            file = PROJECT / place
            if not place.name.startswith("test_"):
                yield root
            elif file.exists() and "mark.extended" in file.read_text():
                yield str(place)


if __name__ == "__main__":
    since = sys.argv[1] if len(sys.argv) > 1 else base()
    print(f"changed since {since or 'nothing: there is no history'}")
    for kind, chosen in selected(changed(since)).items():
        print(f"{kind}: {' '.join(chosen)}")
