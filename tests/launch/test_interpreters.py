"""Each library's ranks run with a Python of their own; what it lacks is told before they start."""

import shutil
import sys
from pathlib import Path

import pytest

from ddl_core.errors import LaunchError, NotInstalledError
from ddl_core.registry import FRAMEWORKS
from ddl_tools.launch import interpreters
from ddl_tools.launch.interpreters import COMMON, OURS, python_of, require, version
from ddl_tools.processes import safe_imports
from tests.launch.stand_ins import StandIns

OTHERS = [name for name in FRAMEWORKS if name not in OURS]


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without any environment."""
    monkeypatch.setattr(interpreters, "PROJECT", tmp_path)
    for name in FRAMEWORKS:
        monkeypatch.delenv(f"DDL_PYTHON_{name.upper()}", raising=False)
    return tmp_path


def add(packages: Path, *names: str) -> None:
    for name in names:
        folder = packages / f"{name}-1.2.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1.2\n")


def environment(checkout: Path, library: str) -> Path:
    """Make an environment whose Python cannot be started; return the folder of its packages."""
    folder = checkout / f".venv-{library}"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    return folder / "lib" / "python3.11" / "site-packages"


@pytest.fixture
def packages(checkout: Path) -> Path:
    """Make an environment of TensorFlow."""
    packages = environment(checkout, "tensorflow")
    add(packages, "tensorflow_cpu", "PyYAML", *(name for name in COMMON if name != "pyyaml"))
    return packages


@pytest.mark.parametrize("library", OTHERS)
def test_without_an_environment_the_error_names_the_target(library: str) -> None:
    for ask in (python_of, lambda name: version(name, name), lambda name: require(name, "single")):
        with pytest.raises(NotInstalledError, match=rf"run `make {library}`, or.*DDL_PYTHON_"):
            ask(library)


def test_an_environment_that_is_not_complete_is_refused(packages: Path) -> None:
    with pytest.raises(NotInstalledError, match=r"strategy 'horovod' of.*run `make tensorflow`"):
        require("tensorflow", "horovod")
    add(packages, "horovod")
    require("tensorflow", "horovod")
    for package in ("tensorflow_cpu", "PyYAML", "numpy"):
        shutil.rmtree(packages / f"{package}-1.2.dist-info")
        with pytest.raises(NotInstalledError, match="needs the package"):
            require("tensorflow", "single")
        add(packages, package)


@pytest.mark.parametrize("package", FRAMEWORKS["keras"].also)
def test_keras_needs_what_computes_for_it(checkout: Path, package: str) -> None:
    packages = environment(checkout, "keras")
    add(packages, "keras", *COMMON, *(one for one in FRAMEWORKS["keras"].also if one != package))
    with pytest.raises(NotInstalledError, match=f"the package '{package}'.*run `make keras`"):
        require("keras", "spmd")
    add(packages, package)
    require("keras", "spmd")


def test_a_named_interpreter_comes_first(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDL_PYTHON_TENSORFLOW", sys.executable)
    assert python_of("tensorflow") == Path(sys.executable)
    assert version("tensorflow", "pydantic") != "1.2"  # this environment's
    with pytest.raises(NotInstalledError, match="framework 'tensorflow' needs the package"):
        require("tensorflow", "single")


def test_modules_of_a_site_are_found_where_they_say(
    tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules of a cluster put their packages on PYTHONPATH."""
    add(tmp_path / "module", "mxnet", "horovod")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "module"))
    stand_ins.script("python", f'#!/bin/sh\necho >>"$0.log"\nexec "{sys.executable}" "$@"\n')
    monkeypatch.setenv("DDL_PYTHON_MXNET", str(stand_ins.folder / "python"))
    with safe_imports():  # as in all that `ddl` does
        require("mxnet", "horovod")
    assert (stand_ins.folder / "python.log").read_text() == "\n"  # asked once


def test_a_variable_that_names_no_python_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for named in ("no/such/python", "."):
        monkeypatch.setenv("DDL_PYTHON_MXNET", named)
        with pytest.raises(LaunchError, match=f"^DDL_PYTHON_MXNET = '{named}' is not an exec"):
            python_of("mxnet")
    monkeypatch.setenv("DDL_PYTHON_KERAS", shutil.which("false") or "")
    with pytest.raises(LaunchError, match="does not start as a Python"):
        version("keras", "keras")
