"""The doctor: an honest report, whatever is broken."""

import json
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddl_core.cli import doctor as module
from ddl_core.cli import main
from ddl_core.cli.doctor import Finding, probe, text
from ddl_core.paths import STUDIES
from ddl_core.spec import Study

LAPTOP_STRATEGIES = {run.strategy for run in Study.load(STUDIES / "laptop.yaml").expand()}


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which every package answers; return its image folder."""

    def answers(name: str, required: bool) -> Finding:
        return Finding(name, "ok", "1.0", required=required)

    monkeypatch.setattr(module, "probe", answers)
    monkeypatch.setattr(module, "_installed", answers)
    monkeypatch.setattr(module, "available_cores", lambda: 4)
    for split in ("train", "val"):
        for name in ("ant", "bee"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
    return tmp_path / "images"


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)])


def findings(*arguments: object) -> dict[str, dict]:
    report = json.loads(doctor("--json", *arguments).output)
    return {one["subject"]: one for one in report["findings"]}


def test_a_healthy_machine_is_ready(healthy):
    result = doctor("--data", healthy)
    assert result.exit_code == 0
    assert "can run here: yes" in result.output
    assert json.loads(doctor("--json", "--data", healthy).output)["ready"] is True
    assert findings("--data", healthy)["data"]["detail"].endswith("2 classes")


def test_missing_data_are_named_with_the_command_that_makes_them(healthy, tmp_path):
    result = doctor("--data", tmp_path / "nowhere")
    assert result.exit_code == 1
    assert "to get it: ddl data sample" in result.output
    assert "can run here: no: data" in result.output


def test_what_the_laptop_study_does_not_use_may_be_missing(healthy, monkeypatch):
    def lacks(name: str, required: bool) -> Finding:
        state = "missing" if name == "jupyterlab" else "ok"
        return Finding(name, state, "", "make env", required)

    monkeypatch.setattr(module, "_installed", lacks)
    result = doctor("--data", healthy)
    assert result.exit_code == 0
    assert "jupyterlab   missing" in result.output


@pytest.mark.parametrize("name", ["torch", *sorted(LAPTOP_STRATEGIES & module.PROBES.keys())])
def test_what_it_uses_may_not(healthy, monkeypatch, name):
    def lacks(asked: str, required: bool) -> Finding:
        return Finding(asked, "broken" if asked == name else "ok", "", "make env", required)

    monkeypatch.setattr(module, "probe", lacks)
    result = doctor("--data", healthy)
    assert result.exit_code == 1
    assert f"no: {name}" in result.output


def test_too_few_cores_and_a_folder_that_cannot_be_written(healthy, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "available_cores", lambda: 1)
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    found = findings("--data", healthy, "--results", blocked / "results")
    assert [found[one]["state"] for one in ("cores", "results", "data")] == [
        "missing",
        "missing",
        "ok",
    ]
    assert "--results" in found["results"]["remedy"]


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        ("print('noise'); say('1.2', 'with Gloo')", "ok", "1.2, with Gloo"),
        ("import a_package_that_is_not_there", "broken", "a_package_that_is_not_there"),
        ("import os; os.abort()", "broken", "exit code -6"),
        ("import time; time.sleep(60)", "broken", "over 1 s"),
        ("print('said nothing')", "broken", "exit code 0"),
    ],
)
def test_a_package_that_breaks_at_import_is_a_finding(monkeypatch, code, state, words):
    monkeypatch.setitem(module.PROBES, "pydantic", code)  # installed for certain
    found = probe("pydantic", patience_s=1 if "sleep" in code else 30)
    assert found.state == state
    assert words in found.detail


def test_a_package_that_is_not_installed_is_not_asked(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.setitem(module.PROBES, "not_there", "")
    assert probe("not_there", required=True) == Finding(
        "not_there", "missing", "", "make env", required=True
    )


@pytest.mark.slow
def test_torch_is_asked_for_its_build():
    assert probe("torch").detail.startswith(metadata.version("torch").split("+")[0])


def test_the_report_is_aligned():
    lines = text(
        [Finding("a", "ok", "1"), Finding("longer", "missing", "2", "make env")]
    ).splitlines()
    assert lines == [
        "a       ok       1",
        "longer  missing  2",
        "                 to get it: make env",
    ]
