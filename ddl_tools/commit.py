"""The commit of the code: git's word in a clone, that of the build in a wheel."""

import json
import os
import subprocess
from typing import Any

from ddl_core.origin import COMMIT, HOME, IN_CLONE

GIT_PATIENCE_S = 20.0
CODE = ("ddl_core/__init__.py", "ddl_tools/__init__.py")  # a repository of the code tracks them
UNTRACKED = 1  # exit status of `git ls-files --error-unmatch`
NO_REPOSITORY = "the code is in no git repository"
# What git says, and what it means for the code.
REASONS = {
    "not a git repository": NO_REPOSITORY,
    "dubious ownership": "git does not trust the owner of the repository",
}


def code() -> dict[str, Any]:
    """Return the commit of the code: ``git_commit``, ``git_dirty``, ``git_missing``.

    The last one says why git does not know the commit, which then is ``DDL_COMMIT``. Those of a
    wheel are of its build.
    """
    if not IN_CLONE:
        built: dict[str, Any] = json.loads(COMMIT.read_text(encoding="utf-8"))
        return built | {"git_commit": built["git_commit"] or os.environ.get("DDL_COMMIT")}
    commit, dirty, missing = os.environ.get("DDL_COMMIT"), None, None
    try:
        _git("ls-files", "--error-unmatch", *CODE)
        head, *changes = _git(
            "status", "--porcelain=v2", "--branch", "--untracked-files=no", "--", "."
        ).splitlines()
        if (head := head.removeprefix("# branch.oid ")) == "(initial)":
            missing = "the git repository has no commit"
        else:
            commit, dirty = head, any(not line.startswith("#") for line in changes)
    except FileNotFoundError:
        missing = "git is not installed"
    except subprocess.TimeoutExpired:
        missing = f"git did not answer within {GIT_PATIENCE_S:.0f} s"
    except OSError as error:
        missing = f"git did not start: {error.strerror}"
    except subprocess.CalledProcessError as error:
        missing = _reason(error)
    return {"git_commit": commit, "git_dirty": dirty, "git_missing": missing}


def _reason(error: subprocess.CalledProcessError) -> str:
    """Return why git does not know the code, without the folders that it names."""
    if error.returncode == UNTRACKED:
        return "the git repository around the code does not track it"
    found = (REASONS[words] for words in REASONS if words in error.stderr)
    return next(found, f"git ended with status {error.returncode}")


def _git(*arguments: str) -> str:
    """Return what git says of the code, whatever repository the environment names."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # Who may change a checkout may change the code that runs here: to read it adds no risk.
    command = ["git", "-c", f"safe.directory={HOME}", "-C", str(HOME), *arguments]
    return subprocess.run(
        command,
        env={**kept, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=GIT_PATIENCE_S,
        check=True,
        stdin=subprocess.DEVNULL,
    ).stdout
