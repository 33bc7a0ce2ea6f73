"""Modules and libraries that variables of a cluster's modules put before this environment's."""

import json
import os
import sys
from pathlib import Path

import pytest

from ddl_tools.records.paths import PROJECT
from tests.commands import run

# Modules that are older than needed, that do not load, and that work.
OLD = {
    "typing_extensions": ("typing_extensions.py", "__version__ = '4'"),
    "click": ("click/__init__.py", "__version__ = '1'"),
    "yaml": ("yaml.py", "raise RuntimeError('built for another Python')"),
    "psutil": ("psutil.py", "def broken(:"),
}
LAZY = {
    "numpy": ("numpy/__init__.py", "import numpy.core"),
    "PIL": ("PIL/__init__.py", "__version__ = '1'"),
}
DRY = ("study", "plan", "laptop", "--dry-run")


def write(folder: Path, file: str, code: str) -> Path:
    """Write a module; return the folder."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    return folder


def ddl(*words: str, **variables: object) -> "tuple[int, str, str]":
    """Call `ddl` in a process of its own; return its status and what it says."""
    added = variables.pop("PYTHONPATH", None)
    path = os.pathsep.join(str(one) for one in (added, PROJECT) if one)
    done = run(sys.executable, "-m", "ddl_tools.cli", *words, PYTHONPATH=path, **variables)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("module", OLD)
def test_a_module_from_outside_is_named_with_its_folder_and_the_variable(
    tmp_path: Path, module: str
) -> None:
    folder = write(tmp_path / "foreign", *OLD[module])
    status, _, said = ddl("--help", PYTHONPATH=folder)
    assert status == 1
    assert len(said.splitlines()) == 1
    for words in (module, str(folder), "unset PYTHONPATH"):
        assert words in said


@pytest.mark.parametrize("module", ["click", *LAZY])
def test_the_doctor_reports_it(tmp_path: Path, module: str) -> None:
    folder = write(tmp_path / "foreign", *{**OLD, **LAZY}[module])
    status, report, _ = ddl("doctor", "--json", PYTHONPATH=folder)
    assert status == 1
    (found,) = [one for one in json.loads(report)["findings"] if one["subject"] == "imports"]
    assert found["state"] == "bad"
    assert module in found["detail"]
    assert str(folder) in found["detail"]
    assert found["remedy"] == "unset PYTHONPATH"
    status, report, _ = ddl("doctor", PYTHONPATH=folder)
    assert status == 1
    assert str(folder) in report
    assert "remedy: unset PYTHONPATH" in report


def test_a_library_from_outside_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "lib", "libstdc++.so.6", "no library")
    status, report, _ = ddl("doctor", "--json", LD_LIBRARY_PATH=folder)
    assert status == 1
    (found,) = json.loads(report)["findings"]
    assert str(folder / "libstdc++.so.6") in found["detail"]
    assert found["remedy"] == "unset LD_LIBRARY_PATH"


def test_a_module_from_outside_that_works_is_a_warning(tmp_path: Path) -> None:
    again = "import sys; sys.path.remove({!r}); del sys.modules['tqdm']; from tqdm import *"
    folder = tmp_path / "foreign"
    write(folder, "tqdm.py", again.format(str(folder)))
    status, _, said = ddl(*DRY, PYTHONPATH=folder)
    assert status == 0
    assert f"warning: PYTHONPATH replaces modules of {sys.prefix}: tqdm from {folder}" in said


def test_modules_of_your_own_are_nothing_to_warn_of(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", "my_models.py", "")
    write(folder, "tests/__init__.py", "")
    write(folder, "numpy/notes.txt", "")  # no package: Python takes the environment's
    status, _, said = ddl(*DRY, PYTHONPATH=folder)
    assert (status, "warning: PYTHONPATH" in said) == (0, False)


def test_this_environment_before_others_is_nothing_to_warn_of(tmp_path: Path) -> None:
    """As in kernels of a centre, which put their own packages first."""
    folder = write(tmp_path / "foreign", *OLD["click"])
    own = Path(sys.prefix, "lib", f"python3.{sys.version_info.minor}", "site-packages")
    status, _, said = ddl(*DRY, PYTHONPATH=f"{own}{os.pathsep}{folder}")
    assert (status, "warning: PYTHONPATH" in said) == (0, False)
