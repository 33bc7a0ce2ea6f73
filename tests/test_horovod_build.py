"""The build recipe of Horovod: what it asks of the compiler; it builds once; how it fails."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ddl_tools.records.paths import PROJECT
from tests.commands import copy_checkout, output, run, stub

RECIPE = PROJECT / "requirements" / "horovod"

# Stands in for Python: notes what pip is asked for; `pip wheel` makes an empty wheel, or fails.
# It has the torch of STUB_FACTS, by default one for the CPU.
STUB = """#!/bin/sh
case "$*" in
    *facts.py" "*) printf '%s\\n' ${STUB_FACTS:-2.13.0+cpu none none none none} ;;
    *"pip "*" wheel "*)
        echo wheel ${DDL_HOROVOD_NO_CUDA:+no-cuda} >>"$STUB_LOG"
        env | grep -E '^(CUDA|LIBRARY_PATH|HOROVOD_(CUDA|NCCL))' >"$STUB_LOG.env"
        [ -z "${STUB_FAILS:-}" ] || exit 1
        for last; do :; done
        touch "$last/horovod-0.28.1-stub.whl" ;;
    *"pip "*) echo install >>"$STUB_LOG" ;;
    *"import cmake"*) echo /no/cmake ;;
    *"import horovod"*) ;;
    *) exec "$REAL_PYTHON" "$@" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with Makefile, recipe and an environment whose Python is a stub."""
    root = copy_checkout(tmp_path / "checkout")
    stub(root / ".venv" / "bin" / "python", STUB)
    (root / ".venv" / ".packages").write_text(f"{root}\n")
    return root


def call(checkout: Path, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    ours = re.compile("HOROVOD|^CUDA")
    settings = {name: value for name, value in os.environ.items() if not ours.search(name)}
    settings |= {
        "STUB_LOG": str(checkout / "log"),
        "REAL_PYTHON": sys.executable,
        "XDG_CACHE_HOME": str(checkout / "cache"),
    }
    return run(*command, cwd=checkout, env=settings, **variables)


def build(checkout: Path, **variables: str) -> None:
    done = call(checkout, "make", "horovod", **variables)
    assert done.returncode == 0, done.stdout


def builds(checkout: Path) -> int:
    return (checkout / "log").read_text().split().count("wheel")


def wheels(checkout: Path) -> list[Path]:
    return list((checkout / "cache" / "ddl" / "horovod").glob("*/*.whl"))


def test_the_same_wheel_is_built_once(checkout: Path) -> None:
    for _ in range(2):
        build(checkout)
    assert (builds(checkout), len(wheels(checkout))) == (1, 1)
    build(checkout, STUB_FACTS="2.13.1 none none none none")
    assert (builds(checkout), len(wheels(checkout))) == (2, 2)


def test_a_wheel_that_others_may_have_put_there_is_not_installed(checkout: Path) -> None:
    build(checkout)
    cache = checkout / "cache" / "ddl" / "horovod"
    cache.chmod(0o777)
    (checkout / "log").unlink()
    done = call(checkout, "make", "horovod")
    assert done.returncode != 0
    assert f"{cache} is not this user's alone to write to" in done.stdout
    assert not (checkout / "log").exists()
    cache.chmod(0o755)
    build(checkout)


def test_the_goal_wheel_installs_nothing(checkout: Path) -> None:
    script, python = "requirements/horovod/build.sh", ".venv/bin/python"
    done = call(checkout, "bash", script, python, "wheels", "torch", "wheel")
    assert done.returncode == 0, done.stderr
    assert (checkout / "log").read_text().split("\n")[-2] == "wheel no-cuda"


def test_a_compilation_that_fails_leaves_no_wheel_and_is_tried_again(checkout: Path) -> None:
    done = call(checkout, "make", "horovod", STUB_FAILS="1")
    assert done.returncode != 0
    assert "Horovod was not built: the compilation failed" in done.stdout
    assert ".venv/horovod.log" in done.stdout
    assert list((checkout / "cache" / "ddl" / "horovod").iterdir()) == []
    build(checkout)
    assert builds(checkout) == 2


def test_without_a_compiler_the_environment_is_complete_but_for_horovod(checkout: Path) -> None:
    done = call(checkout, "make", ".venv/.horovod", CXX="/no/such/c++")
    assert done.returncode == 0
    for word in ("no C++ compiler /no/such/c++", "package g++", "make horovod"):
        assert word in done.stdout
    again = call(checkout, "make", ".venv/.horovod", CXX="/no/such/c++")
    assert "Horovod" not in again.stdout  # told once


def toolkit(checkout: Path, release: str) -> Path:
    """Make a CUDA toolkit that has nothing but a version."""
    home = checkout / f"cuda-{release}"
    stub(
        home / "bin" / "nvcc",
        "#!/bin/sh\n"
        f'case $1 in --dryrun) echo "#\\$ TOP={home}/bin/.." >&2 ;; *) '
        f"echo 'Cuda compilation tools, release {release}, V{release}.9' ;; esac\n",
    )
    return home


@pytest.fixture
def gpu(checkout: Path) -> dict[str, Any]:
    """What to call `make` with: NCCL asked for, a torch for CUDA 13.0 and such a toolkit."""
    # What torch's wheel of NCCL has: a header, and a library without a plain name.
    header, library = checkout / "wheel/include/nccl.h", checkout / "wheel/lib/libnccl.so.2"
    for path in (header, library):
        path.parent.mkdir(parents=True)
        path.write_text(path.name)
    return {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "STUB_FACTS": f"2.13.0 13.0 2.29.7 {header} {library}",
        "CUDA_HOME": str(toolkit(checkout, "13.0")),
    }


def read_settings(checkout: Path) -> dict[str, str]:
    """Return what the last build got to know of CUDA and NCCL."""
    lines = (checkout / "log.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_default_build_is_the_same_beside_a_toolkit_and_a_gpu(checkout, gpu) -> None:
    """Else Horovod takes CUDA as soon as it finds nvcc, and ends where the rest is missing."""
    del gpu["HOROVOD_GPU_OPERATIONS"]
    home = gpu.pop("CUDA_HOME")
    found = {"PATH": f"{home}/bin:{os.environ['PATH']}", "CUDACXX": f"{home}/bin/nvcc"}
    for more in ({}, found, {"CUDA_HOME": home, "HOROVOD_CUDA_HOME": home}):
        build(checkout, **gpu, **more)
    assert "wheel no-cuda\n" in (checkout / "log").read_text()
    assert read_settings(checkout) == {}
    assert (builds(checkout), len(wheels(checkout))) == (1, 1)


@pytest.mark.parametrize("named", ["PATH", "CUDA_HOME", "HOROVOD_CUDA_HOME"])
def test_nccl_is_torchs_own(checkout: Path, gpu: dict[str, Any], named: str) -> None:
    home = gpu.pop("CUDA_HOME")
    gpu[named] = f"{home}/bin:{os.environ['PATH']}" if named == "PATH" else home
    build(checkout, **gpu)
    assert "wheel no-cuda" not in (checkout / "log").read_text()
    settings = read_settings(checkout)
    links = Path(settings.pop("HOROVOD_NCCL_HOME"))
    assert settings == {
        **dict.fromkeys(("CUDA_HOME", "CUDA_PATH", "HOROVOD_CUDA_HOME"), home),
        "CUDACXX": f"{home}/bin/nvcc",
        "HOROVOD_NCCL_LINK": "SHARED",
    }
    assert (links / "include" / "nccl.h").read_text() == "nccl.h"
    assert (links / "lib" / "libnccl.so").read_text() == "libnccl.so.2"


def test_nvidias_wheels_are_a_toolkit(checkout: Path, gpu: dict[str, Any]) -> None:
    """They have no lib64 and no libcudart.so, for which the linker asks."""
    wheels = Path(gpu["CUDA_HOME"])
    for part in ("include", "nvvm", "lib"):
        (wheels / part).mkdir()
    for name in ("libcudart.so.13", "libcudadevrt.a"):
        (wheels / "lib" / name).write_text(name)
    build(checkout, **gpu)
    settings = read_settings(checkout)
    joined = Path(settings["HOROVOD_CUDA_HOME"])
    assert joined != wheels
    assert settings["CUDA_HOME"] == str(joined)
    assert settings["CUDACXX"] == f"{joined}/bin/nvcc"
    assert sorted(path.name for path in joined.iterdir()) == ["bin", "include", "lib64", "nvvm"]
    assert (joined / "lib64" / "libcudart.so").read_text() == "libcudart.so.13"
    assert (joined / "lib64" / "libcudadevrt.a").exists()
    assert settings["LIBRARY_PATH"].split(":")[0] == str(joined / "lib64")


def test_another_toolkit_nccl_or_torch_is_another_build(checkout, gpu) -> None:
    build(checkout, **gpu)
    changes = (
        {"CUDA_HOME": str(toolkit(checkout, "13.1"))},
        {"STUB_FACTS": gpu["STUB_FACTS"].replace("2.29.7", "2.30.1")},
        {"STUB_FACTS": gpu["STUB_FACTS"].replace(" 13.0 ", " 13.2 ")},
    )
    for number, change in enumerate(changes):
        build(checkout, **{**gpu, **change})
        assert builds(checkout) == number + 2
    # In the same place, as where /usr/local/cuda is a link.
    nvcc = Path(gpu["CUDA_HOME"]) / "bin" / "nvcc"
    nvcc.write_text(nvcc.read_text().replace("V13.0.9", "V13.0.10"))
    build(checkout, **gpu)
    assert builds(checkout) == len(changes) + 2


def test_an_nccl_that_is_named_is_taken(checkout: Path, gpu: dict[str, Any]) -> None:
    own = str(checkout / "wheel")
    facts = "2.13.0 13.0 none none none"  # as of a torch that conda has installed
    build(checkout, **{**gpu, "STUB_FACTS": facts}, HOROVOD_NCCL_HOME=own)
    assert read_settings(checkout)["HOROVOD_NCCL_HOME"] == own


NOT_OF_CUDA = "2.13.0+cpu none none none none"
OF_CUDA_12 = "2.13.0+cu126 12.6 2.29.7 /nccl.h /libnccl.so.2"
WITHOUT_NCCL = "2.13.0 13.0 none none none"


@pytest.mark.parametrize(
    ("variable", "value", "lacks", "remedy"),
    [
        ("STUB_FACTS", NOT_OF_CUDA, "torch 2.13.0+cpu", "install a CUDA build of torch"),
        ("HOROVOD_CUDA_HOME", "/no/such", "/no/such/bin/nvcc", "HOROVOD_CUDA_HOME=/path"),
        ("STUB_FACTS", OF_CUDA_12, "of CUDA 13.0", "the major versions have to be the same"),
        ("STUB_FACTS", WITHOUT_NCCL, "nvidia-nccl-cu13", "HOROVOD_NCCL_HOME=/path"),
        ("HOROVOD_NCCL_HOME", "/no/nccl", "/no/nccl/include/nccl.h", "unset it"),
    ],
)
def test_what_a_gpu_build_lacks_is_told_before_it_begins(
    checkout: Path, gpu: dict[str, Any], variable: str, value: str, lacks: str, remedy: str
) -> None:
    done = call(checkout, "make", "horovod", **{**gpu, variable: value})
    assert done.returncode != 0
    for word in ("Horovod was not built: ", lacks, remedy):
        assert word in done.stdout
    assert not (checkout / "log").exists()  # nothing was installed or compiled


def test_torchs_cuda_and_nccl_are_found_without_importing_it(tmp_path: Path) -> None:
    wheel = "nvidia_nccl_cu13-2.29.7.dist-info"
    files = {
        "torch/__init__.py": "raise RuntimeError('imported')",
        "torch/version.py": "cuda = '13.0'",
        "torch-2.13.0.dist-info/METADATA": "Name: torch\nVersion: 2.13.0\n",
        f"{wheel}/METADATA": "Name: nvidia-nccl-cu13\nVersion: 2.29.7\n",
        f"{wheel}/RECORD": "nvidia/nccl/include/nccl.h,,\nnvidia/nccl/lib/libnccl.so.2,,\n",
        "nvidia/nccl/include/nccl.h": "",  # since 3.12, Python names only those that are there
        "nvidia/nccl/lib/libnccl.so.2": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def facts() -> list[str]:
        told = output(sys.executable, RECIPE / "facts.py", "torch", PYTHONPATH=tmp_path)
        return told.splitlines()

    place = tmp_path / "nvidia" / "nccl"
    names = [str(place / "include" / "nccl.h"), str(place / "lib" / "libnccl.so.2")]
    assert facts() == ["2.13.0", "13.0", "2.29.7", *names]
    (tmp_path / "torch" / "version.py").write_text("cuda = None")
    assert facts() == ["2.13.0", "none", "none", "none", "none"]


@pytest.mark.skipif(find_spec("torch") is None, reason="needs the package torch")
def test_without_cuda_torch_says_so() -> None:
    code = "import torch; from torch.utils.cpp_extension import CUDA_HOME as home"
    code += "; print(torch.version.cuda, home)"
    told = output(sys.executable, RECIPE / "no_cuda.py", "-c", code, CUDA_HOME="/usr")
    assert told == "None None\n"


def test_mpi_that_is_asked_for_and_missing_is_an_error(checkout: Path) -> None:
    tools = checkout / "tools"  # all but mpicxx
    tools.mkdir()
    for name in ("sh", "bash", "g++", "make", "dirname", "env", "cat", "tail", "grep"):
        (tools / name).symlink_to(shutil.which(name) or f"/no/{name}")
    done = call(checkout, "make", "horovod", HOROVOD_WITH_MPI="1", PATH=str(tools))
    assert done.returncode != 0
    assert "there is no mpicxx" in done.stdout
    assert "libopenmpi-dev" in done.stdout
