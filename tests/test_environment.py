"""pip, conda, make, pre-commit and pyproject.toml name the same versions."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ddl_tools.emulation import local_slurm
from ddl_tools.records.paths import PROJECT

REQUIREMENTS = PROJECT / "requirements"
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
CONDA = yaml.safe_load((PROJECT / "environment.yml").read_text())
# The packages of DALI cannot share an environment, nor all that they pull in.
DALI = sorted(REQUIREMENTS.glob("dali_*.txt"))
# What a benchmark compares with is in no environment of the project.
OTHERS = {*DALI, *(REQUIREMENTS / f"{name}.txt" for name in ("constraints", "benchmarks", "uv"))}
HASHES = REQUIREMENTS / "hashes"
HASH = re.compile(r" *\\?\n? +--hash=sha256:([0-9a-f]{64})")
# An index may have builds of its own of these.
WITHOUT_HASH = {"torch", "torchvision"}
SETS = sorted({*REQUIREMENTS.glob("*.txt")} - OTHERS)


def read_pins(path: Path) -> dict[str, str]:
    text = HASH.sub("", path.read_text())
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    requirements = [Requirement(line) for line in lines if line]
    return {canonicalize_name(one.name): str(one.specifier) for one in requirements}


CONSTRAINTS = read_pins(REQUIREMENTS / "constraints.txt")


def test_every_pin_is_exact_and_without_local_suffix() -> None:
    pins = [read_pins(path) for path in REQUIREMENTS.rglob("*.txt")]
    all_pins = [pin for each in pins for pin in each.values()]
    assert [pin for pin in all_pins if not re.fullmatch(r"==[\w.]+", pin)] == []


def test_hashes_are_those_of_the_same_versions() -> None:
    """After a change of a version: `make hashes`."""
    files = sorted(HASHES.rglob("*.txt"))
    originals = [REQUIREMENTS / path.relative_to(HASHES) for path in files]
    assert {*REQUIREMENTS.rglob("*.txt")} - {*files, *originals} == {
        *(set(SETS)),
        REQUIREMENTS / "libraries" / "common.txt",
    }
    for path, original in zip(files, originals, strict=True):
        pins = read_pins(original)
        assert read_pins(path) == {name: pins[name] for name in pins.keys() - WITHOUT_HASH}
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        entries = [line for line in lines if not line.startswith(" ")]
        assert all(line.endswith(" \\") for line in entries), path  # each with a hash


def test_packages_without_hashes_are_named_where_trust_is() -> None:
    text = (PROJECT / "SECURITY.md").read_text()
    assert [name for name in sorted(WITHOUT_HASH) if f"`{name}`" not in text] == []


def test_sets_agree_with_constraints() -> None:
    for path in SETS:
        for name, pin in read_pins(path).items():
            assert CONSTRAINTS[name] == pin, f"{path.name}: {name}"


def test_conda_installs_the_same_files() -> None:
    (pip_part,) = (entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict))
    names = [path.name for path in SETS] + ["dali_cuda130.txt"]
    files = [f"-r requirements/{name}" for name in names]
    assert sorted(pip_part) == sorted(["-c requirements/constraints.txt", *files, "-e ."])


def test_make_installs_the_same_files() -> None:
    (sets,) = re.findall(r"^SETS := (.*)$", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(sets.split()) == [path.stem for path in SETS]


def test_make_knows_the_packages_of_dali() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    (known,) = re.findall(r"^DALIS := (.*)$", makefile, re.MULTILINE)
    assert sorted(f"dali_{name}" for name in known.split()) == [path.stem for path in DALI]
    assert not {pin for path in DALI for pin in read_pins(path)} & CONSTRAINTS.keys()


def test_pyproject_reads_the_same_files() -> None:
    dynamic = PYPROJECT["tool"]["setuptools"]["dynamic"]
    extras = {name: entry["file"] for name, entry in dynamic["optional-dependencies"].items()}
    extras["analysis"] = dynamic["dependencies"]["file"]
    assert extras == {path.stem: [f"requirements/{path.name}"] for path in SETS}


def test_python_range_is_the_same_everywhere() -> None:
    allowed = SpecifierSet(PYPROJECT["project"]["requires-python"])
    minors = [f"3.{minor}" for minor in range(30) if f"3.{minor}" in allowed]
    script = (REQUIREMENTS / "system.sh").read_text()
    assert re.findall(r'^python_versions="([^"]*)"', script, re.MULTILINE) == [" ".join(minors)]
    assert f"python={minors[0]}" in CONDA["dependencies"]
    # What is checked is written for the oldest.
    assert PYPROJECT["tool"]["mypy"]["python_version"] == minors[0]
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + minors[0].replace(".", "")


@pytest.mark.parametrize(
    ("words", "absent"),
    [(("--dali", "cuda130"), "--index-url"), (("--index", "https://x/rocm"), "dali")],
)
def test_images_are_made_of_the_same_pins(
    tmp_path: Path, words: tuple[str, str], absent: str
) -> None:
    program = [sys.executable, REQUIREMENTS / "image.py", tmp_path / "image"]
    subprocess.run([*program, *words], check=True, capture_output=True)
    found = {path.name: path.read_text() for path in (tmp_path / "image").iterdir()}
    assert found.pop("constraints.txt") == (REQUIREMENTS / "constraints.txt").read_text()
    pinned = {name: read_pins(REQUIREMENTS / f"{name}.txt") for name in ("analysis", "train")}
    if "--dali" in words:
        pinned["dali"] = read_pins(REQUIREMENTS / "dali_cuda130.txt")
    steps = []
    for text in found.values():
        for name, pin in {
            name: pin for each in pinned.values() for name, pin in each.items()
        }.items():
            assert f"{name}{pin}" in text.lower().replace("_", "-")
        assert absent not in text
        lines = [line.strip().removeprefix("RUN ") for line in text.splitlines()]
        steps.append([line for line in lines if line.startswith(("apt-get", "python -m pip"))])
        subprocess.run(["sh", "-n"], input="\n".join(steps[-1]), text=True, check=True)
    assert len(found) == 2
    assert steps[0] == steps[1]
    assert len(steps[0]) == (3 if "--index" in words else 2)


def test_setuptools_is_the_one_that_builds() -> None:
    """From Python 3.12 on an environment starts without it; torch and Horovod's build need it."""
    (build,) = PYPROJECT["build-system"]["requires"]
    for pins in (CONSTRAINTS, read_pins(REQUIREMENTS / "horovod" / "build.txt")):
        assert f"setuptools{pins['setuptools']}" == build


def test_a_missing_slurm_is_told_as_it_is_installed() -> None:
    script = (REQUIREMENTS / "slurm.sh").read_text()
    (packages,) = re.findall(r'^packages="([^"]*)"', script, re.MULTILINE)
    assert packages == local_slurm.PACKAGES


def test_hooks_have_the_pinned_revisions() -> None:
    hooks = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"]
    revisions = {repo["repo"].rsplit("/", 1)[1]: repo["rev"] for repo in hooks if "rev" in repo}
    assert "==" + revisions["ruff-pre-commit"].removeprefix("v") == CONSTRAINTS["ruff"]
    assert "==" + revisions["nbstripout"] == CONSTRAINTS["nbstripout"]
