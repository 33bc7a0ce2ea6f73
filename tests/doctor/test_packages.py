"""A package that hangs or crashes is a finding, not the end of the doctor."""

import subprocess
from importlib import metadata

import pytest

from ddl_core.doctor import machine
from ddl_core.doctor.finding import Finding, subjects, text
from ddl_core.doctor.machine import ask, examine_packages


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        ("print('noise'); say('1.2', 'with Gloo')", "ok", "1.2, with Gloo"),
        ("import a_package_that_is_not_there", "warn", "a_package_that_is_not_there"),
        ("refuse('sees no GPU', 'another torch'); say('1.2')", "bad", "sees no GPU"),
        ("import os; os.abort()", "warn", "exit code -6"),
        ("import time; time.sleep(60)", "warn", "over 1 s"),
        ("print('said nothing')", "warn", "exit code 0"),
    ],
)
def test_a_package_that_breaks_at_import_is_a_finding(monkeypatch, code, state, words):
    monkeypatch.setitem(machine.PROBES, "pydantic", code)  # installed for certain
    found = ask("pydantic", patience_s=1 if "sleep" in code else 30)
    assert found.state == state
    assert words in found.detail


def test_a_package_that_is_not_installed_is_not_asked(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.setitem(machine.PROBES, "not_there", "")
    assert ask("not_there", required=True) == Finding(
        "not_there", "bad", "not installed", "make env"
    )


def test_only_what_is_needed_is_bad_when_it_is_missing(monkeypatch):
    def lacks(name: str, required: bool) -> Finding:
        return Finding(name, "bad" if required else "warn", "not installed", "make env")

    monkeypatch.setattr(machine, "installed", lacks)
    found = examine_packages({"horovod"})
    assert subjects(found, "bad") == ["torch", "torchvision", "horovod", "papermill"]
    assert subjects(found, "warn") == ["deepspeed", "jupyterlab", "ipyparallel", "dali"]


@pytest.mark.slow
def test_torch_is_asked_for_its_build():
    assert ask("torch").detail.startswith(metadata.version("torch").split("+")[0])


def test_the_report_is_aligned():
    lines = text(
        [Finding("a", "ok", "1", "none"), Finding("longer", "warn", "2", "make env")]
    ).splitlines()
    assert lines == [
        "a       ok    1",
        "longer  warn  2",
        "              remedy: make env",
    ]
