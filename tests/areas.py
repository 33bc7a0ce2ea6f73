"""What CI has to run beside `make test`: print it for the paths that the commits at hand change.

    python -m tests.areas [BASE]

Without BASE the commits are those that origin's branch lacks; where it has them all, those of the
day before the newest one, first parents only. Where there is no history, nothing has changed.
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterable
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
    """Return the paths that differ between a commit and this one."""
    return git("diff", "--name-only", since, "HEAD", at=at).splitlines() if since else []


def selected(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the ``tests`` and the ``targets`` of the areas that these paths lie in."""
    found: dict[str, list[str]] = {"tests": [], "targets": []}
    places = [PurePosixPath(path) for path in paths]
    for area in AREAS.values():
        roots = [*area["changed"], *area["tests"]]
        if any(place.is_relative_to(root) for place in places for root in roots):
            for kind, chosen in found.items():
                chosen += [one for one in area.get(kind, []) if one not in chosen]
    return found


if __name__ == "__main__":
    since = sys.argv[1] if len(sys.argv) > 1 else base()
    print(f"changed since {since or 'nothing: there is no history'}")
    for kind, chosen in selected(changed(since)).items():
        print(f"{kind}: {' '.join(chosen)}")
