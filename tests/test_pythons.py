"""Which Python `make env` takes, what it says before a large download, and `make pythons`."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from ddl_tools.records.paths import PROJECT
from tests.commands import copy_checkout, output, run, stub

TOOLS = "bash cat command dirname env git grep mkdir printf rm sed tail cp chmod"

# Stands in for a Python of the version that its file name or STUB_VERSION says.
STUB = """#!/bin/bash
version=${STUB_VERSION:-$(basename "$0" | sed 's/python//')}
case "$*" in
    *version_info*) echo "$version" ;;
    *"sys.executable"*) echo "$0" ;;
    --version) echo "Python $version.4" ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *--dry-run*aarch64*) exit "${STUB_RESOLVES_FOR_ARM:-0}" ;;
    *--dry-run*) echo resolving; exit "${STUB_RESOLVES:-0}" ;;
    *"-m pytest"*) echo "7 passed in 1.00s"; exit "${STUB_TESTS:-0}" ;;
esac
"""


def python_at(file: Path) -> Path:
    return stub(file, STUB)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH without any Python, and without apt-get."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in (*TOOLS.split(), "basename", "g++"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


def call(script: str, *arguments: str, cwd: Path = PROJECT, **variables: str):
    command = ("bash", f"requirements/{script}", *arguments)
    return run(*command, cwd=cwd, env={"HOME": "/nonexistent"}, **variables)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_each_supported_python_is_taken(tools: Path, version: str) -> None:
    python = python_at(tools / f"python{version}")
    done = call("bootstrap.sh", PATH=str(tools))
    assert (done.returncode, done.stdout) == (0, f"{python}\n"), done.stderr


def test_the_python_that_most_was_run_on_is_preferred(tools: Path) -> None:
    for version in ("3.14", "3.13", "3.12"):
        python_at(tools / f"python{version}")
    assert call("bootstrap.sh", PATH=str(tools)).stdout.endswith("python3.12\n")


def test_a_python_that_is_too_old_is_named_with_the_range(tools: Path) -> None:
    python_at(tools / "python3")
    done = call("bootstrap.sh", PATH=str(tools), PYTHON="python3", STUB_VERSION="3.10")
    assert done.returncode != 0
    assert "Python 3.11 to 3.14 is needed, and here python3 is Python 3.10.4" in done.stderr


def test_dali_for_cuda_11_stops_at_3_12(tools: Path) -> None:
    python_at(tools / "python3.13")
    done = call("bootstrap.sh", PATH=str(tools), DALI="cuda110", PYTHON="python3.13")
    assert done.returncode != 0
    assert "Python 3.11 to 3.12 is needed for DALI=cuda110" in done.stderr
    python = python_at(tools / "python3.12")
    assert call("bootstrap.sh", PATH=str(tools), DALI="cuda110").stdout == f"{python}\n"


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("", "cuda130"),
        ("580.65.06", "cuda130"),
        ("575.57.08", "cuda120"),
        ("525.60.13", "cuda120"),
        ("470.82.01", "cuda110"),
        ("NVIDIA-SMI has failed", "cuda130"),
    ],
)
def test_the_driver_chooses_dali(tools: Path, driver: str, expected: str) -> None:
    (tools / "head").symlink_to(str(shutil.which("head")))
    if driver:
        stub(tools / "nvidia-smi", f"#!/bin/sh\necho '{driver}'\n")
    assert call("dali.sh", PATH=str(tools)).stdout == f"{expected}\n"


def test_make_takes_dali_of_the_driver_unless_one_is_named(checkout: Path, tmp_path: Path) -> None:
    smi = stub(tmp_path / "driver" / "nvidia-smi", "#!/bin/sh\necho 535.129.03\n")
    (checkout / "pyproject.toml").touch()
    path = f"{smi.parent}:{os.environ['PATH']}"
    for words, taken in (((), "cuda120"), (("DALI=cuda130",), "cuda130")):
        plan = output("make", "-n", "env", *words, cwd=checkout, PATH=path)
        assert re.findall(r"hashes/dali_(\w+)", plan) == [taken]


def test_make_env_names_the_next_command_and_other_targets_do_not(checkout: Path) -> None:
    (checkout / "pyproject.toml").touch()
    for target, number in (("env", 1), ("figures", 0)):
        assert output("make", "-n", target, cwd=checkout).count('"next: ') == number


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return copy_checkout(tmp_path / "checkout")


def test_an_environment_of_a_later_python_refuses_dali_for_cuda_11(checkout: Path) -> None:
    # To the one question that is asked.
    stub(checkout / ".venv" / "bin" / "python", "#!/bin/sh\nexit 1\n")
    (checkout / ".venv" / ".packages").write_text(f"{checkout}\n")
    done = run("make", ".venv/.dali-cuda110", "DALI=cuda110", cwd=checkout)
    assert done.returncode != 0
    assert "DALI for CUDA 11 needs Python 3.11 or 3.12, and .venv has a later one" in done.stdout
    assert "installing" not in done.stdout


def test_a_machine_with_no_other_python_has_nothing_to_try(checkout: Path, tools: Path) -> None:
    python_at(checkout / ".venv" / "bin" / "python")
    python_at(tools / "python3.12")  # the one of .venv
    done = call("pythons.sh", "logs", cwd=checkout, PATH=str(tools), STUB_VERSION="3.12")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no other Python" in done.stdout


def test_each_other_python_gets_one_line(checkout: Path, tools: Path, tmp_path: Path) -> None:
    python_at(tools / "python3.13")
    inside = tmp_path / "pyenv" / "versions" / "3.14.1" / "bin" / "python"
    stub(inside, STUB.replace("version=", "version=3.14 #"))
    settings = {"PATH": str(tools), "PYENV_ROOT": str(tmp_path / "pyenv")}
    inside.parent.joinpath("python3.14").symlink_to(inside)
    # The stub of an environment does not know its version; only that of the folder is asked.
    done = call("pythons.sh", "logs", cwd=checkout, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" (")[0] for line in lines] == ["Python 3.13", "Python 3.14"]
    assert all("all pins resolved" in line and "7 passed" in line for line in lines)


@pytest.mark.parametrize(
    ("variable", "what"),
    [
        ("STUB_RESOLVES", "resolving the pins"),
        ("STUB_RESOLVES_FOR_ARM", "resolving the pins for aarch64"),
        ("STUB_TESTS", "tests"),
    ],
)
def test_what_failed_is_named(checkout: Path, tools: Path, variable: str, what: str) -> None:
    python_at(tools / "python3.13")
    done = call("pythons.sh", "logs", cwd=checkout, PATH=str(tools), **{variable: "1"})
    assert done.returncode != 0
    assert f"Python 3.13: {what} " in done.stdout
    assert "FAILED; all of the output: logs/3.13.log" in done.stdout
    assert "failed on Python 3.13" in done.stderr


WITHOUT_TORCH = """
import pytest
from ddl_core.errors import NotInstalledError

def test_runs(): pass
def test_fails(): assert False
def test_needs_torch(): raise NotInstalledError("training needs the package 'torch'")
def test_imports_torch(): raise ModuleNotFoundError("No module named 'torch'")
@pytest.fixture
def images(): raise ModuleNotFoundError("No module named 'skimage.data'")
def test_uses_images(images): pass
"""


@pytest.mark.parametrize(("forbidden", "installed"), [("1", False), ("0", True)])
def test_a_user_can_forbid_system_packages(tools: Path, forbidden: str, installed: bool) -> None:
    log = tools / "log"
    stub(tools / "apt-get", f"#!/bin/bash\necho $* >>{log}\n")
    stub(tools / "apt-cache", "#!/bin/bash\n")
    stub(tools / "id", "#!/bin/bash\necho 0\n")
    script = ". requirements/system.sh; apt_install g++"
    run("bash", "-c", script, env={"PATH": str(tools)}, DDL_NO_APT=forbidden)
    assert log.exists() is installed


def test_without_torch_only_what_needs_it_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(WITHOUT_TORCH)
    (tmp_path / "test_none.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    options = ("-p", "tests.without_torch", "-p", "no:cacheprovider", "-c", "/dev/null", "-q")
    done = run(sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, tmp_path)
    assert "1 failed, 1 passed, 4 skipped" in done.stdout, done.stdout
    assert "test_some.py::test_fails" in done.stdout


CUDA = "torch-2.13.0-cp313-cp313-manylinux_2_28_x86_64.whl"
CPU = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.mark.parametrize(
    ("file", "gpu", "said"), [(CUDA, False, True), (CUDA, True, False), (CPU, False, False)]
)
def test_the_cost_of_cuda_is_said_where_nothing_uses_it(file, gpu, said, monkeypatch, capsys):
    monkeypatch.syspath_prepend(PROJECT / "requirements")
    import torch_cost as cost

    monkeypatch.setattr(cost, "has_gpu", lambda: gpu)
    monkeypatch.setattr(cost, "has_amd", lambda: False)
    monkeypatch.setattr(cost, "chosen_file", lambda pin: file)
    cost.main()
    output = capsys.readouterr().out
    assert ("GB" in output and "TORCH_INDEX" in output and CUDA in output) is said
    assert bool(output) is said


@pytest.mark.parametrize("file", [CUDA, CPU, "torch-2.13.0+rocm7.0-cp313-cp313-linux_x86_64.whl"])
def test_a_machine_of_amd_hears_of_rocm(file, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(PROJECT / "requirements")
    import torch_cost as cost

    monkeypatch.setattr(cost, "has_gpu", lambda: False)
    monkeypatch.setattr(cost, "has_amd", lambda: True)
    monkeypatch.setattr(cost, "chosen_file", lambda pin: file)
    cost.main()
    assert ("ROCm" in capsys.readouterr().out) is ("rocm" not in file)
