"""An installed package brings names: the guide followed to the letter, and bad packages."""

import json
from pathlib import Path

import pandas as pd
import pytest

from ddl_core import registry
from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_core.loaders.base import open_loader
from ddl_tools.doctor import machine
from ddl_tools.launch.slurm import site
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.stored import run_dirs
from tests import pages
from tests.pictures import CLASSES, write_pictures

PAGE = "how-to/write-a-plug-in.md"
# What `ddl doctor` says of packages, but for those that it has to import.
PACKAGES = """
from ddl_tools.doctor import machine
machine.PROBES.clear()
for one in machine.examine_packages(()):
    print(one.subject, one.state, one.detail)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package, target = (tmp_path_factory.mktemp(name) for name in ("package", "installed"))
    return pages.install(PAGE, package, target)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.notebook
def test_the_pages_study_runs_to_a_figure_outside_the_project(installed, tmp_path) -> None:
    write_pictures(tmp_path / "images", 64, 16)
    pages.write(["ours.yaml"], PAGE, tmp_path)
    assert f"classes: {CLASSES}\n" in pages.files(PAGE)["ours.yaml"]
    said = [pages.ddl(installed, tmp_path, *words) for words in pages.commands(PAGE)]
    assert "same weights under all strategies: 1 of 1 groups" in said[0]
    assert "#SBATCH --partition=gpu" in said[2]
    # Here the names are unknown, so the records are read as what they are in.
    folders = run_dirs("ours", Tree(tmp_path / "results"))
    runs = [json.loads(RunFiles(one).record.read_text()) for one in folders]
    assert {one["spec"]["strategy"]: one["status"] for one in runs} == {
        "ddp": "completed",
        "at_once": "completed",
    }
    for one in runs:
        assert one["provenance"]["packages"]["ddl-ours"] == "0.1"
    (drawn,) = (tmp_path / "results" / "figures").rglob("comparison.csv")
    assert set(pd.read_csv(drawn)["strategy"]) == {"ddp", "at_once"}
    assert "at_once" in " ".join(pd.read_csv(drawn)["label"])
    assert drawn.with_name("README.md").is_file()
    assert "ddl-ours ok 0.1" in pages.python(installed, tmp_path, "-c", PACKAGES)


def announce(folder: Path, package: str, points: dict[str, str]) -> None:
    """Leave in `folder` what pip leaves of a package with such entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"[ddl_core.{kind}]\n{point}\n" for kind, point in points.items()]
    (info / "entry_points.txt").write_text("".join(lines))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of packages; what they announce is read anew."""
    monkeypatch.syspath_prepend(tmp_path)
    registry._entry_points.cache_clear()
    yield tmp_path
    registry._entry_points.cache_clear()


def test_a_name_replaces_none_and_stands_for_one_thing(path: Path) -> None:
    announce(path, "one", {"strategy": "ddp = one:X", "loader": "fast = one:Fast"})
    announce(path, "two", {"strategy": "a-b = two:X", "loader": "fast = two:Fast"})
    chosen, left_out = registry.plug_ins("strategy", registry.STRATEGIES)
    assert chosen == {}
    assert sorted(left_out) == [
        "strategy 'a-b' of package two: a name is made of a-z, 0-9 and _",
        "strategy 'ddp' of package one: the project has one of that name; give it another",
    ]
    chosen, left_out = registry.plug_ins("loader", registry.LOADERS)
    assert chosen == {}
    assert left_out == [
        "loader 'fast' of package one and two: one name stands for one thing; uninstall all but one"
    ]
    assert registry.plug_ins("model", registry.MODELS) == ({}, [])


def test_what_is_left_out_is_told_by_doctor_and_to_who_asks(monkeypatch) -> None:
    why = "loader 'fast' of package one and two: one name stands for one thing; uninstall one"
    monkeypatch.setattr(registry, "LEFT_OUT", [why])
    monkeypatch.setattr(machine, "PROBES", {})
    (found,) = (one for one in machine.examine_packages(()) if one.subject == "plug-in")
    assert (found.state, found.remedy) == ("warn", "uninstall one")
    with pytest.raises(SpecError, match=r"unknown loader 'fast' \(loader 'fast' of package one"):
        registry.check_name("loader", "fast")
    with pytest.raises(SpecError, match="unknown loader 'faster'; choose"):
        registry.check_name("loader", "faster")


FIRST_VERSION = {
    "base": "from ddl_core.loaders.base import FileLoader\nclass Ours(FileLoader): ...\n",
    "methods": "class Ours:\n    def __init__(self, *arguments): ...\n",
}


@pytest.mark.parametrize("form", FIRST_VERSION)
def test_a_loader_of_the_first_version_is_told_what_to_derive_from(form, path, monkeypatch) -> None:
    (path / f"first_{form}.py").write_text(FIRST_VERSION[form])
    code = registry.Entry(f"first_{form}:Ours")
    monkeypatch.setitem(registry.LOADERS, "ours", code)
    with pytest.raises(SpecError, match=r"`Loader`.*docs/how-to/add-a-loader\.md"):
        open_loader(RunSpec(loader="ours"), None, "train", 0, 1, None)


def test_a_package_without_what_it_announces_is_named(path, monkeypatch) -> None:
    (path / "one").mkdir()
    (path / "one" / "__init__.py").write_text("")
    for attribute in ("one:Absent", "one:"):
        monkeypatch.setitem(registry.MODELS, "new", registry.Entry(attribute))
        with pytest.raises(SpecError, match=f"model 'new' is announced as {attribute}, but there"):
            registry.resolve("model", "new")
    announce(path, "one", {"site": "here = one:absent.toml\nthere = two:a.toml"})
    assert {"here", "there"} <= {*site.known_sites()}
    for name in ("here", "there"):
        with pytest.raises(SpecError, match=f"site '{name}' of package one is announced as"):
            site.find_site(name)
