"""Names: every one leads somewhere, a missing package disables its own arm only."""

from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import NotInstalledError, SpecError
from ddl_core.registry import REGISTRIES, STRATEGIES, Entry, resolve
from ddl_tools.doctor import machine
from ddl_tools.launch import commands
from ddl_tools.records.provenance import provenance


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in REGISTRIES.items() for name in names]
)
def test_every_registered_name_can_be_imported(kind, name):
    if "torch" in ((name,) if kind == "framework" else REGISTRIES[kind][name].frameworks):
        assert callable(resolve(kind, name))
    else:  # in an environment of its own: tests/libraries
        module, attribute = REGISTRIES[kind][name].code.split(":")
        assert f"class {attribute}:" in Path(find_spec(module).origin).read_text()


def test_an_unknown_name_lists_the_choices():
    names = ", ".join(sorted(STRATEGIES))
    with pytest.raises(SpecError, match=f"'nccl'; choose one of: {names}"):
        resolve("strategy", "nccl")


def test_a_missing_package_is_named_with_a_remedy(monkeypatch, tmp_path):
    (tmp_path / "needs_it.py").write_text("import a_framework_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(STRATEGIES, "new", Entry("needs_it:Thing"))
    with pytest.raises(NotInstalledError, match=r"a_framework_that_is_not_there.*make env"):
        resolve("strategy", "new")


def test_a_new_framework_is_known_to_records_doctor_launcher_and_settings(monkeypatch):
    """One entry is all that a framework needs beside its file; figures: test_unknown_names."""
    entry = Entry("manual:Manual", "by hand", packages=("pyyaml",), one_run_per_process=True)
    monkeypatch.setitem(STRATEGIES, "manual", entry)
    assert provenance()["packages"]["pyyaml"] == metadata.version("pyyaml")
    monkeypatch.setattr(machine, "PROBES", {})
    asked = {one.subject: one.state for one in machine.examine_packages(["manual"])}
    assert asked["pyyaml"] == "ok"
    spec = RunSpec(strategy="manual", gpus_per_node=2)
    assert commands.command(spec, "worker", Path("run"), Path("logs")).ranks == 2
    monkeypatch.setitem(STRATEGIES, "manual", replace(entry, packages=("no-such-package",)))
    with pytest.raises(NotInstalledError, match="'manual' needs the package 'no-such-package'"):
        commands.command(spec, "worker", Path("run"), Path("logs"))
    with pytest.raises(SpecError, match="ddp_bucket_mb is a setting of strategy 'ddp'"):
        RunSpec.parse({"strategy": "manual", "ddp_bucket_mb": 1})
