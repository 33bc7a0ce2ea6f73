"""An installed package brings names: the guide followed to the letter, and bad packages."""

import json
from pathlib import Path

import pandas as pd
import pytest
from pydantic import Field

from ddl_core import registry
from ddl_core.config import Options, RunSpec, run_fields
from ddl_core.errors import RecordError, SpecError
from ddl_core.loaders.base import open_loader
from ddl_tools.doctor import machine
from ddl_tools.launch.slurm import site
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.run import RunRecord, UnknownNameError, parse_record
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
    assert "same weights under all strategies: 1 of 1 group" in said[0]
    assert "#SBATCH --partition=gpu" in said[2]
    # Here the names are unknown, so the records are read as what they are in.
    folders = run_dirs("ours", Tree(tmp_path / "results"))
    runs = [json.loads(RunFiles(one).record.read_text()) for one in folders]
    found = {(one["spec"]["strategy"], one["spec"].get("at_once_parts")): one for one in runs}
    assert {*found} == {("ddp", None), ("at_once", None), ("at_once", 4)}
    assert {one["status"] for one in runs} == {"completed"}
    for one in runs:
        assert one["provenance"]["packages"]["ddl-ours"] == "0.1"
    (drawn,) = (tmp_path / "results" / "figures").rglob("comparison.csv")
    assert set(pd.read_csv(drawn)["strategy"]) == {"ddp", "at_once"}
    assert "at_once" in " ".join(pd.read_csv(drawn)["label"])
    assert "parts 4" in " ".join(pd.read_csv(drawn)["label"])
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


class Toy(Options):
    """Options as a package declares them."""

    toy_on: bool = False
    toy_number: int = Field(3, ge=1, le=9)
    toy_share: float = Field(0.5, ge=0, le=1)

    def refusals(self, run):
        if self.toy_on and run.loader != "memory":
            yield f"toy_on = true, but loader = {run.loader!r}; use 'memory'"


class Wrong(Options):
    toy_text: str = "x"


class Taken(Options):
    seed: int = 1


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch):
    """Return a function that announces a class of this file."""
    monkeypatch.setattr(registry, "LEFT_OUT", [])

    def announce(name: str, kind: str) -> None:
        monkeypatch.setitem(registry.OPTIONS, name, f"{__name__}:{kind}")

    return announce


def test_an_option_is_a_field_of_a_run_that_its_default_does_not_change(declare) -> None:
    before = RunSpec()
    declare("toy", "Toy")
    assert RunSpec().run_id == before.run_id
    assert RunSpec().model_dump() == before.model_dump()
    one = RunSpec(toy_number=4, toy_share=1)
    assert one.run_id not in {before.run_id, RunSpec(toy_number=5, toy_share=1).run_id}
    assert (one.toy_on, one.toy_number, one.toy_share, RunSpec().toy_number) == (False, 4, 1.0, 3)
    assert one.of(Toy) == Toy(toy_number=4, toy_share=1.0)
    assert one.model_dump(exclude_defaults=True) == {"toy_number": 4, "toy_share": 1.0}
    assert RunSpec.model_validate_json(one.model_dump_json()) == one
    assert one.model_copy(update={"toy_number": 3}).run_id == RunSpec(toy_share=1.0).run_id


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"toy_number": 10}, r"toy_number = 10: .* less than or equal to 9"),
        ({"toy_number": True}, r"toy_number = True: .* valid integer"),
        ({"toy_numbr": 4}, r"toy_numbr = 4: unknown field; did you mean toy_number"),
        ({"toy_on": True}, r"toy_on = true, but loader = 'native'; use 'memory'"),
    ],
)
def test_what_an_option_may_not_be_is_named(declare, fields: dict, words: str) -> None:
    declare("toy", "Toy")
    with pytest.raises(SpecError, match=words):
        RunSpec.parse(fields)


def test_an_option_of_no_package_is_unknown() -> None:
    with pytest.raises(SpecError, match="toy_on = True: unknown field"):
        RunSpec.parse({"toy_on": True})


def test_options_that_are_none_are_left_out_and_named(declare) -> None:
    for name, kind, why in (
        ("toy", "Wrong", "field 'toy_text' has no default that is a bool, an int or a float"),
        ("se", "Taken", "field 'seed' exists; give it another name"),
        ("so", "Toy", "field 'toy_on' does not begin with 'so'"),
        ("gone", "Absent", f"options 'gone' is announced as {__name__}:Absent, but there is no"),
        ("path", "Path", "it is no class derived from ddl_core.config.Options"),
    ):
        declare(name, kind)
        assert "toy_on" not in run_fields()
        assert why in registry.LEFT_OUT[-1]
    assert RunSpec().seed == 0


def test_a_record_with_options_of_a_missing_package_is_whole(declare, tmp_path: Path) -> None:
    declare("toy", "Toy")
    content = RunRecord.plan("adhoc", RunSpec(toy_number=4)).model_dump(mode="json")
    content["provenance"] = {"packages": {"toys": "1.0"}}
    assert parse_record(tmp_path, content).spec.toy_number == 4
    del registry.OPTIONS["toy"]
    with pytest.raises(UnknownNameError, match=r"toy_number.* is not known here") as caught:
        parse_record(tmp_path, content)
    assert "install toys==1.0" in caught.value.remedy
    content["provenance"] = None  # nothing says whose it is
    with pytest.raises(RecordError, match="toy_number = 4: unknown field"):
        parse_record(tmp_path, content)
