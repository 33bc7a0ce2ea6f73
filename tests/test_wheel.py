"""A wheel works without a clone: it holds what commands read, and nothing writes into it."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from email import message_from_bytes
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from ddl_tools.records.paths import PROJECT
from tests.commands import output, run
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow

HIDDEN = ("DDL_", "PYTHON", "GIT_")  # variables of these tests that a user does not have
TINY = "--strategy single --model resnet18 --loader synthetic --image-size 32 --gpus-per-node 1"
TINY += " --train-images 64 --eval-images 16 --local-batch-size 16 --epochs 1 --device cpu"


class Built(NamedTuple):
    """A wheel, and the commit and the files it was built from."""

    wheel: Path
    commit: str
    tracked: list[str]


class Installed(NamedTuple):
    """An environment with the wheel, without a clone."""

    programs: Path
    packages: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Return the variables of a user."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
        return kept | {name: os.environ[name] for name in ("DDL_MEASURING_LOCK",)} | more

    def ddl(self, folder: Path, *words: object) -> "subprocess.CompletedProcess[str]":
        """Run `ddl` in a folder."""
        done = run(self.programs / "ddl", *words, cwd=folder, env=self.environment())
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def files(self) -> dict[Path, int]:
        """Return all files of the packages, but compiled ones."""
        found = (one for one in self.packages.rglob("*") if "__pycache__" not in one.parts)
        return {one: one.stat().st_mtime_ns for one in found if one.is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("clone")
    tracked = output("git", "-C", PROJECT, "ls-files", "-z").strip("\0").split("\0")
    tracked = [name for name in tracked if (PROJECT / name).is_file()]
    for name in tracked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, folder / name)
    git = ("git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b")
    output(*git, "init", "--quiet")
    output(*git, "add", ".")
    output(*git, "-c", "commit.gpgsign=false", "commit", "--quiet", "--message=x")
    target = tmp_path_factory.mktemp("dist")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps")
    output(*pip, "--no-build-isolation", "--wheel-dir", target, ".", cwd=folder, PYTHONPATH="")
    (wheel,) = target.glob("*.whl")
    return Built(wheel, output(*git, "rev-parse", "HEAD").strip(), tracked)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the packages of all extras."""
    everything = Path(sysconfig.get_path("purelib"))
    return install(built, tmp_path_factory.mktemp("environment"), everything)


@pytest.fixture(scope="module")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with what the wheel itself requires, without any extra."""
    linked = tmp_path_factory.mktemp("linked")
    with ZipFile(built.wheel) as wheel:
        (name,) = (one for one in wheel.namelist() if one.endswith(".dist-info/METADATA"))
        about = message_from_bytes(wheel.read(name))
    wanted, known = about.get_all("Requires-Dist", []), set[str]()
    while wanted:
        needed = Requirement(wanted.pop())
        if needed.name in known or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        known.add(needed.name)
        package = metadata.distribution(needed.name)
        wanted += package.requires or ()
        for part in {file.parts[0] for file in package.files or ()} - {".."}:
            (linked / part).symlink_to(package.locate_file(part))
    return install(built, tmp_path_factory.mktemp("bare"), linked)


def install(built: Built, folder: Path, dependencies: Path) -> Installed:
    output(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index")
    output(*pip, "--no-deps", "--no-compile", built.wheel, PYTHONPATH="")
    (packages,) = folder.glob("lib/python*/site-packages")
    # A folder that a .pth names has no .pth itself: the clone that is installed there stays away.
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    found = output(python, "-c", "import ddl_core; print(ddl_core.__file__)", cwd=folder, env={})
    assert Path(found.strip()).is_relative_to(packages)
    return Installed(folder / "bin", packages)


def test_a_wheel_has_all_files_of_the_packages(built: Built) -> None:
    names = set(ZipFile(built.wheel).namelist())
    own = {name for name in built.tracked if name.startswith(("ddl_core/", "ddl_tools/"))}
    assert own - names == set()
    assert {"ddl_core/py.typed", "ddl_tools/py.typed"} <= names
    for folder in ("studies/", "slurm/", "notebooks/", "data/paper/", "data/runs/", "data/LICENSE"):
        beside = {f"ddl_tools/tree/{one}" for one in built.tracked if one.startswith(folder)}
        assert beside - names == set()
    assert not any(name.startswith(("tests", "benchmarks", "docs")) for name in names)


def test_an_editable_installation_copies_nothing(tmp_path: Path) -> None:
    """That of `make env` reads the folders of its clone."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, tmp_path)
    for name in ("ddl_core", "ddl_tools", "requirements"):
        shutil.copytree(PROJECT / name, tmp_path / name)
    build = "import setuptools.build_meta as backend; backend.build_editable('made')"
    (tmp_path / "made").mkdir()
    output(sys.executable, "-c", build, cwd=tmp_path, PYTHONPATH="")
    (wheel,) = (tmp_path / "made").glob("*.whl")
    assert not [name for name in ZipFile(wheel).namelist() if "tree" in name]
    assert not (tmp_path / "ddl_tools" / "tree").exists()


def test_commands_work_in_an_empty_folder(bare: Installed, tmp_path: Path) -> None:
    before = bare.files()
    folder = tmp_path / "empty"
    folder.mkdir()
    data = write_pictures(tmp_path / "data", 64, 16)
    assert "ddl, version" in bare.ddl(folder, "--version").stdout
    for words, expected in (
        (["recommend", "--dry-run", "--model", "resnet18", "--data", data], "64 training images"),
        (["advise", "--site", "juwels_booster", "--gpus", "8"], "extrapolated"),
        (["study", "plan", "one_gpu"], "planned"),
        (["study", "status", "laptop"], "48 runs"),
    ):
        done = bare.ddl(folder, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert expected in done.stdout, words
    assert [one.name for one in folder.iterdir()] == ["results"]
    assert (folder / "results" / "runs" / "one_gpu").is_dir()
    assert bare.files() == before


def test_a_job_works_where_it_was_submitted(bare: Installed, tmp_path: Path) -> None:
    site = ("--site", "juwels_booster", "--account", "x", "--dry-run")
    done = bare.ddl(tmp_path, "study", "submit", "laptop", *site)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert f"#SBATCH --chdir={tmp_path}" in lines
    assert any(str(tmp_path / "results" / "runs" / "laptop") in line for line in lines)
    # The packages of this environment are not those of another library.
    assert not any(line.startswith("export PYTHONPATH") for line in lines)


def test_figures_of_records(bare: Installed, tmp_path: Path) -> None:
    before = bare.files()
    shutil.copytree(PROJECT / "data" / "runs" / "sharding", tmp_path / "mine/runs/sharding")
    done = bare.ddl(tmp_path, "figures", "--results", "mine")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "mine" / "figures" / "sharding" / "README.md").read_text()
    assert "](memory_against_throughput.png)" in page
    assert "docs/" not in page  # no link to a page that is not there
    published = ("figures", "--study", "sharding", "--to", "published")
    assert bare.ddl(tmp_path, *published).returncode == 0
    drawn = tmp_path / "published" / "figures" / "sharding" / "memory_against_throughput.png"
    assert drawn.is_file()
    assert bare.files() == before


@pytest.mark.parametrize(
    "words", [("figures",), ("report",), ("study", "publish", "laptop")], ids=" ".join
)
def test_what_writes_into_a_clone_says_so(
    bare: Installed, tmp_path: Path, words: tuple[str, ...]
) -> None:
    before = bare.files()
    done = bare.ddl(tmp_path, *words)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "clone" in line
    assert bare.files() == before
    assert not list(tmp_path.iterdir())


def test_remedies_are_those_of_a_wheel(installed: Installed, tmp_path: Path) -> None:
    said = json.loads(installed.ddl(tmp_path, "doctor", "--json").stdout)
    texts = (f"{one['detail']} {one['remedy']}" for one in said["findings"])
    remedies = [one for one in texts if "make " in one]
    assert remedies, "no framework beside torch is installed"
    assert all("in a clone" in one for one in remedies)


@pytest.mark.multiprocess
@pytest.mark.notebook
def test_a_run_names_the_commit_of_its_wheel(
    built: Built, installed: Installed, tmp_path: Path
) -> None:
    before = installed.files()
    done = installed.ddl(tmp_path, "run", *TINY.split())
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = (tmp_path / "results").rglob("run.json")
    made = json.loads(record.read_text())["provenance"]
    assert (made["git_commit"], made["git_dirty"]) == (built.commit, False)
    assert made["packages"]["ddl-core"]
    assert installed.files() == before


def test_a_kernel_is_that_of_its_environment(installed: Installed, tmp_path: Path) -> None:
    done = installed.ddl(tmp_path, "kernel", "install", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"exec {installed.programs}/python" in done.stdout
    assert "PYTHONPATH" not in done.stdout
