"""The build recipe of Horovod: what it asks of the compiler; it builds once; how it fails."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = Path(__file__).resolve().parent.parent
RECIPE = PROJECT / "requirements" / "horovod"

# The recipe asks for torch's version, since a build serves one torch.
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs the package torch")

# Stands in for Python: notes what pip is asked for; `pip wheel` makes an empty wheel, or fails.
STUB = """#!/bin/sh
case "$*" in
    *"pip "*" wheel "*)
        echo wheel ${DDL_HOROVOD_NO_CUDA:+no-cuda} >>"$STUB_LOG"
        [ -z "${STUB_FAILS:-}" ] || exit 1
        for last; do :; done
        touch "$last/horovod-0.28.1-stub.whl" ;;
    *"pip "*) echo install >>"$STUB_LOG" ;;
    *"import cmake"*) echo /no/cmake ;;
    *"import horovod"*) ;;
    *) exec "$REAL_PYTHON" "$@" ;;
esac
"""


def read_pins(path: Path) -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return {(pin := Requirement(line)).name: str(pin.specifier) for line in lines if line}


def test_every_pin_is_exact_and_setuptools_is_the_projects() -> None:
    pins = {**read_pins(RECIPE / "build.txt"), **read_pins(RECIPE / "horovod.txt")}
    assert [pin for pin in pins.values() if not re.fullmatch(r"==[\w.]+", pin)] == []
    build = tomllib.loads((PROJECT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert build == [f"setuptools{pins['setuptools']}"]


@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="no cmake, no g++")
def test_the_toolchain_file_turns_cxx14_into_cxx17(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(horovod CXX)\n"
        "set(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_EXTENSIONS OFF)\nadd_library(x OBJECT x.cc)\n"
    )
    (tmp_path / "x.cc").write_text("static_assert(__cplusplus >= 201703L);\n")
    cmake = shutil.which("cmake") or ""
    for arguments in (["-S", ".", "-B", "build"], ["--build", "build"]):
        subprocess.run(
            [cmake, *arguments],
            cwd=tmp_path,
            env={**os.environ, "CMAKE_TOOLCHAIN_FILE": str(RECIPE / "toolchain.cmake")},
            check=True,
            capture_output=True,
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with Makefile, recipe and an environment whose Python is a stub."""
    root = tmp_path / "checkout"
    shutil.copytree(PROJECT / "requirements", root / "requirements")
    shutil.copy(PROJECT / "Makefile", root)
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STUB)
    python.chmod(0o755)
    (root / ".venv" / ".packages").write_text(f"{root}\n")
    return root


def call(checkout: Path, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    settings = {name: value for name, value in os.environ.items() if "HOROVOD" not in name}
    stub = {"STUB_LOG": str(checkout / "log"), "REAL_PYTHON": sys.executable}
    return subprocess.run(
        command, cwd=checkout, env={**settings, **stub, **variables}, capture_output=True, text=True
    )


def builds(checkout: Path) -> int:
    return (checkout / "log").read_text().split().count("wheel")


def wheels(checkout: Path) -> list[Path]:
    return list((checkout / "build" / "horovod").glob("*/*.whl"))


@needs_torch
def test_the_same_wheel_is_built_once(checkout: Path) -> None:
    for _ in range(2):
        done = call(checkout, "make", "horovod")
        assert done.returncode == 0, done.stdout
    assert (builds(checkout), len(wheels(checkout))) == (1, 1)
    done = call(checkout, "make", "horovod", HOROVOD_GPU_OPERATIONS="NCCL")
    assert done.returncode == 0
    assert (builds(checkout), len(wheels(checkout))) == (2, 2)


@needs_torch
def test_a_compilation_that_fails_leaves_no_wheel_and_is_tried_again(checkout: Path) -> None:
    done = call(checkout, "make", "horovod", STUB_FAILS="1")
    assert done.returncode != 0
    assert "Horovod was not built: the compilation failed" in done.stdout
    assert ".venv/horovod.log" in done.stdout
    assert list((checkout / "build" / "horovod").iterdir()) == []
    assert call(checkout, "make", "horovod").returncode == 0
    assert builds(checkout) == 2


def test_without_a_compiler_the_environment_is_complete_but_for_horovod(checkout: Path) -> None:
    done = call(checkout, "make", ".venv/.horovod", CXX="/no/such/c++")
    assert done.returncode == 0
    assert "there is no C++ compiler /no/such/c++" in done.stdout
    assert "install the package g++" in done.stdout
    assert "only strategy 'horovod' is missing; to try again, run: make horovod" in done.stdout
    again = call(checkout, "make", ".venv/.horovod", CXX="/no/such/c++")
    assert "Horovod" not in again.stdout  # told once


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_a_compiler_takes_what_later_ones_refuse(tmp_path: Path) -> None:
    """GCC 13 and later: Gloo uses uint8_t and Horovod std::logic_error without their headers."""
    (options,) = re.findall(
        r'^export CXXFLAGS="\$\{CXXFLAGS:-\} (.*)"$',
        (RECIPE / "build.sh").read_text(),
        re.MULTILINE,
    )
    source = tmp_path / "x.cc"
    source.write_text('uint8_t x = 1;\nvoid f() { throw std::logic_error("no"); }\n')
    command = ["g++", "-std=c++17", "-Werror", *options.split(), "-c", source]
    subprocess.run([*command, "-o", tmp_path / "x.o"], check=True)


@needs_torch
def test_cuda_is_left_out_where_nothing_would_use_it(checkout: Path) -> None:
    """Else an nvcc without the rest of its toolkit, beside a torch with CUDA, ends the build."""
    here = Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None
    for asked in ({}, {"HOROVOD_GPU_OPERATIONS": "NCCL"}, {"HOROVOD_CUDA_HOME": "/opt/cuda"}):
        done = call(checkout, "make", "horovod", **asked)
        assert done.returncode == 0, done.stdout
        log = (checkout / "log").read_text().splitlines()
        last = [line for line in log if line.startswith("wheel")][-1]
        assert ("no-cuda" in last) is not (bool(asked) or here)


@needs_torch
def test_without_cuda_torch_says_so() -> None:
    code = "import torch; from torch.utils.cpp_extension import CUDA_HOME as home"
    done = subprocess.run(
        [sys.executable, RECIPE / "no_cuda.py", "-c", f"{code}; print(torch.version.cuda, home)"],
        env={**os.environ, "CUDA_HOME": "/usr"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "None None\n", done.stderr


def test_mpi_that_is_asked_for_and_missing_is_an_error(checkout: Path) -> None:
    tools = checkout / "tools"  # all but mpicxx
    tools.mkdir()
    for name in ("sh", "bash", "g++", "make", "dirname", "env", "cat", "tail", "grep"):
        (tools / name).symlink_to(shutil.which(name) or f"/no/{name}")
    done = call(checkout, "make", "horovod", HOROVOD_WITH_MPI="1", PATH=str(tools))
    assert done.returncode != 0
    assert "there is no mpicxx" in done.stdout
    assert "libopenmpi-dev" in done.stdout
