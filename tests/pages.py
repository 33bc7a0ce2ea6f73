"""Pages of docs/ followed to the letter: their files written, their commands executed."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ddl_tools.launch.measuring import LOCK
from ddl_tools.records.paths import PROJECT
from tests.commands import output, run

_FILE = re.compile(r"`([\w/]+\.(?:py|toml|yaml))`:\n\n```\w+\n(.*?)```", re.S)


def files(page: str) -> dict[str, str]:
    """Return the contents of the files that a page shows, by their names."""
    return dict(_FILE.findall(_text(page)))


def write(names: Sequence[str], page: str, folder: Path) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(files(page)[name])


def install(page: str, source: Path, target: Path) -> Path:
    """Write the package that a page shows to `source`, install it into `target`, return that."""
    write(list(files(page)), page, source)
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-deps")
    where = ("--no-index", "--no-build-isolation", "--target", str(target), str(source))
    output(sys.executable, *pip, *where)
    return target


def calls(page: str) -> list[list[str]]:
    """Return the words of each ``ddl`` and ``python`` that a page calls."""
    lines = _text(page).replace("\\\n", " ").splitlines()
    called = [line for line in lines if line.startswith(("ddl ", "python "))]
    return [shlex.split(line, comments=True) for line in called]


def commands(page: str) -> list[list[str]]:
    """Return the words behind ``ddl`` of each command that a page shows."""
    return [words[1:] for words in calls(page) if words[0] == "ddl"]


def ddl(python_path: Path, folder: Path, *words: str, **variables: str) -> str:
    """Run `ddl` in a folder outside the project, with modules on the path; return what it said."""
    return python(python_path, folder, "-m", "ddl_tools.cli", *words, **variables)


def python(python_path: Path, folder: Path, *words: str, **variables: str) -> str:
    """Run Python likewise."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DDL_")}
    kept[LOCK] = os.environ[LOCK]  # of the tests: the machine's may be held for minutes
    kept["PYTHONPATH"] = os.pathsep.join([str(python_path), str(PROJECT)])
    done = run(sys.executable, *words, cwd=folder, env=kept, **variables)
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    if "doctor" not in words:  # which may find other things here
        assert done.returncode == 0, said
    return said


def _text(page: str) -> str:
    return (PROJECT / "docs" / page).read_text()
