"""The environments of the libraries beside torch: what is pinned, and how `make` builds each."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from ddl_core.registry import FRAMEWORKS, STRATEGIES
from ddl_tools.launch.interpreters import COMMON, OURS, require
from tests.commands import copy_checkout, run, stub
from tests.test_environment import CONSTRAINTS, PROJECT, REQUIREMENTS, read_pins

LOCKS = {path.stem: read_pins(path) for path in (REQUIREMENTS / "libraries").glob("*.txt")}
SHARED = LOCKS.pop("common")
OTHERS = [name for name in FRAMEWORKS if name not in OURS]

# Stands in for every Python: notes what it is asked for; pip fails if STUB_FAILS says so.
STUB = """#!/bin/sh
case "$*" in
    *version_info*) echo 3.11 ;;
    *"sys.executable"*) echo "$0" ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *"facts.py "*) printf '%s\\n' 1.2 none none none none ;;
    *sysconfig*) echo "$STUB_HEADERS" ;;
    *"pip "*" wheel "*)
        env | grep -E '^HOROVOD_WITH(OUT)?_(PYTORCH|TENSORFLOW|MXNET)' >>"$STUB_LOG"
        for last; do :; done
        [ -z "${STUB_FAILS:-}" ] && touch "$last/horovod-0.28.1-stub.whl" ;;
    *"pip install"* | *"pip "*" install "*)
        echo "$0 $* ${PIP_INDEX_URL-}${PIP_EXTRA_INDEX_URL-}" >>"$STUB_LOG"
        exit "${STUB_BROKEN:-0}" ;;
esac
"""


def test_what_all_environments_share_has_one_version() -> None:
    """The same versions write all records; setuptools is the one that builds Horovod."""
    for pins in (SHARED, *LOCKS.values()):
        for name in {*SHARED, "pydantic-core", "setuptools"} & pins.keys():
            assert pins[name] == CONSTRAINTS[name], name


def test_each_library_has_a_file_and_a_target() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    assert sorted(LOCKS) == sorted(OTHERS)
    assert re.findall(r"^LIBRARIES := (.*)$", makefile, re.MULTILINE) == [" ".join(OTHERS)]
    for name in OTHERS:
        assert FRAMEWORKS[name].install == f"make {name}"
        assert re.search(rf"^{name}: .*## ", makefile, re.MULTILINE)
        assert {*COMMON, *SHARED} <= LOCKS[name].keys()
        assert {canonicalize_name(one) for one in FRAMEWORKS[name].packages} & LOCKS[name].keys()


@pytest.mark.extended
@pytest.mark.skipif(not os.environ.get("CI"), reason="only CI has to have all environments")
@pytest.mark.parametrize("library", OTHERS)
def test_in_ci_no_test_of_a_library_is_skipped(library: str) -> None:
    for strategy, entry in STRATEGIES.items():
        if library in entry.frameworks:
            require(library, strategy)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = copy_checkout(tmp_path / "checkout")
    stub(root / "tools" / "python3.11", STUB)
    (root / "Python.h").touch()
    return root


def make(checkout: Path, target: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Call `make` with Pythons that are stubs, and return how it ended."""
    settings = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "STUB_LOG": str(checkout / "log"),
        "STUB_HEADERS": str(checkout),
        "XDG_CACHE_HOME": str(checkout / "cache"),
    }
    python = f"PYTHON={checkout / 'tools' / 'python3.11'}"
    return run("make", target, python, cwd=checkout, env=settings, **variables)


def installs(checkout: Path) -> list[str]:
    """Return what was asked of the environments' pip so far, without the folder."""
    lines = (checkout / "log").read_text().splitlines()
    return [line.rstrip() for line in lines if line.startswith(".venv")]


def test_each_library_gets_an_environment_of_its_own_and_the_others_none(checkout: Path) -> None:
    done = make(checkout, "keras")
    assert done.returncode == 0, done.stdout + done.stderr
    (asked,) = installs(checkout)
    assert asked.startswith(".venv-keras/bin/python -m pip install ")
    hashed = "--no-deps --require-hashes -r requirements/hashes/libraries/keras.txt"
    assert asked.endswith(hashed)
    assert [path.name for path in checkout.glob(".venv*")] == [".venv-keras"]
    assert make(checkout, "keras").stdout.startswith("make: Nothing to be done")


def test_each_index_is_used_alone(checkout: Path) -> None:
    """What is compared with hashes may come from any index, torch from the one that is named."""
    variables = {"PIP_EXTRA_INDEX_URL": "https://extra", "TORCH_INDEX": "https://torch"}
    done = make(checkout, ".venv/.packages", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    torch = [line for line in installs(checkout) if " torch==" in line]
    assert [line.rsplit(" ", 1)[1] for line in torch] == ["https://torch"]
    others = [line for line in installs(checkout) if line not in torch and "horovod-" not in line]
    assert others
    assert all("--require-hashes" in line for line in others)
    make(checkout, "mxnet", HASHES="no")
    without = [line for line in installs(checkout) if line.startswith(".venv-mxnet")]
    assert not any("hash" in line for line in without)


def test_a_failing_pip_is_told_and_leaves_no_finished_environment(checkout: Path) -> None:
    done = make(checkout, "mxnet", STUB_BROKEN="1")
    assert done.returncode != 0
    assert "error: pip could not install the pinned packages" in done.stdout
    assert ".venv-mxnet/pip.log" in done.stdout
    assert make(checkout, "mxnet").returncode == 0


@pytest.mark.parametrize("library", ["tensorflow", "mxnet"])
def test_horovod_is_built_for_the_library_alone(checkout: Path, library: str) -> None:
    done = make(checkout, library)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"HOROVOD_WITH_{library.upper()}=1\n" in (checkout / "log").read_text()
    assert (checkout / "log").read_text().count("HOROVOD_WITHOUT_") == 2
    assert f"/libraries/{library}.txt" in installs(checkout)[-1]  # Horovod's own needs are pinned
    assert make(checkout, library).stdout.startswith("make: Nothing to be done")


def test_without_horovod_the_environment_is_there_and_the_next_call_tries_again(checkout) -> None:
    done = make(checkout, "tensorflow", STUB_FAILS="1")
    assert done.returncode == 0, done.stderr
    assert "the compilation failed" in done.stdout
    assert "strategy 'horovod' of library 'tensorflow'" in done.stdout
    again = make(checkout, "tensorflow")
    assert "building Horovod" in again.stdout
    assert "building .venv-tensorflow" not in again.stdout
    assert "is missing" not in again.stdout


def test_a_horovod_for_gpus_is_refused_for_a_library_of_the_cpu(checkout: Path) -> None:
    done = make(checkout, "mxnet", HOROVOD_GPU_OPERATIONS="NCCL")
    assert "mxnet 1.2 here was built without it" in done.stdout
    assert "install a CUDA build of mxnet" in done.stdout


@pytest.mark.parametrize("library", ["tensorflow", "mxnet"])
def test_a_python_without_wheels_of_the_library_is_refused(checkout: Path, library: str) -> None:
    stub(checkout / "tools" / "python3.11", STUB.replace("echo 3.11", "echo 3.12"))
    done = make(checkout, library)
    assert done.returncode != 0
    assert f"Python 3.11 is needed for make {library}" in done.stderr
    assert f"make {library} PYTHON=" in done.stderr
    assert make(checkout, "keras").returncode == 0
