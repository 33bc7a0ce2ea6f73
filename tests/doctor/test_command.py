"""``ddl doctor`` of this machine and of a site, with stand-ins for SLURM's programs."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddl_core.errors import LaunchError
from ddl_tools.doctor import machine, probes
from ddl_tools.emulation import nodes
from ddl_tools.launch.slurm.script import job_name
from ddl_tools.records.paths import results
from ddl_tools.records.probe import read_probe, write_probe
from ddl_tools.records.run import Failure
from tests.doctor.conftest import NODES, Doctor, faults, findings
from tests.doctor.made import answer, record
from tests.launch.stand_ins import StandIns

pytestmark = pytest.mark.usefixtures("healthy")
SLURMS = ("sinfo", "sbatch", "squeue", "scontrol", "scancel")


def test_a_healthy_machine_is_ready(doctor: Doctor, images: Path) -> None:
    result = doctor("--data", images)
    assert result.exit_code == 0, result.output
    assert "can run here: yes" in result.output
    as_json = doctor("--json", "--data", images)
    assert json.loads(as_json.stdout)["ready"] is True
    assert "2 classes" in findings(as_json)["data"]["detail"]


def test_a_machine_that_cannot_emulate_is_told_how_and_is_ready_all_the_same(
    doctor: Doctor, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        detail = "this machine cannot emulate a cluster: no namespace"
        raise LaunchError(detail, remedy="call it as root")

    monkeypatch.setattr(nodes, "check_support", refuse)
    found = findings(result := doctor("--json", "--data", images))["emulation"]
    assert (found["state"], found["remedy"]) == ("warn", "call it as root")
    assert result.exit_code == 0


@pytest.mark.parametrize(("named", "state"), [(None, "warn"), ("0123abcd", "ok")])
def test_code_whose_commit_is_not_known_is_reported_with_the_reason(
    doctor: Doctor, images: Path, monkeypatch: pytest.MonkeyPatch, named: str | None, state: str
) -> None:
    found = {"git_commit": named, "git_dirty": None, "git_missing": "git is not installed"}
    monkeypatch.setattr(machine, "code", lambda: found)
    shown = findings(doctor("--json", "--data", images))["commit"]
    assert shown["state"] == state
    assert "git is not installed" in shown["detail"]
    assert "DDL_COMMIT" in shown["remedy"]


def test_validation_classes_without_training_images_are_bad(doctor, images: Path) -> None:
    (images / "val" / "cat").mkdir()
    (images / "train" / "dog").mkdir()
    assert "does not know: cat" in findings(doctor("--json", "--data", images))["data"]["detail"]
    (images / "val" / "cat").rmdir()
    found = findings(doctor("--json", "--data", images))["data"]
    assert found["state"] == "ok"
    assert "3 classes (1 of them without validation images)" in found["detail"]


def test_missing_shards_and_indices_are_bad(doctor, tmp_path: Path) -> None:
    def look() -> dict[str, str]:
        arguments = ("--json", "--data", tmp_path, "--data-format", "tfrecord")
        return findings(doctor(*arguments))["data"]

    for name in ("train-00000-of-00002", "validation-00000-of-00001"):
        (tmp_path / name).touch()
    assert "lacks 1 shards: train-00001-of-00002" in look()["detail"]
    (tmp_path / "train-00001-of-00002").touch()
    assert "train-00000-of-00002.idx: No such file" in look()["detail"]
    (tmp_path / "index").mkdir()
    for shard in tmp_path.glob("*-of-*"):
        (tmp_path / "index" / f"{shard.name}.idx").touch()
    assert look()["state"] == "ok"
    assert "2 + 1 shards" in look()["detail"]


def test_what_is_missing_is_named_with_its_remedy(doctor, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(machine.limits, "cores", lambda: 1.0)
    (tmp_path / "file").touch()
    words = ("--data", tmp_path / "nowhere", "--results", tmp_path / "file" / "results")
    found = faults(doctor, *words)
    assert [found[one]["state"] for one in ("cores", "results", "data")] == ["bad"] * 3
    assert "--results" in found["results"]["remedy"]
    told = doctor(*words).output
    assert "remedy: ddl data sample" in told
    assert "can run here: no: cores, results, data" in told


def test_a_login_node_starts_no_ranks(doctor, images, login_node: StandIns) -> None:
    assert faults(doctor, "--data", images, "--ranks", 2)["login node"]["state"] == "bad"
    assert not results().probes.exists()


def test_without_slurm_a_site_cannot_be_submitted_to(doctor, alone: StandIns) -> None:
    found = faults(doctor, "--site", "localtest")
    assert found["scheduler"]["state"] == "bad"
    assert "no controller" in found["scheduler"]["detail"]
    assert found["ranks"]["detail"] == "not probed, because of: scheduler"
    assert not results().probes.exists()


def test_several_nodes_are_refused_on_one_machine(doctor, alone: StandIns, images) -> None:
    result = doctor("--ranks", 1, "--nodes", 2, "--data", images)
    assert result.exit_code == 1
    assert "nodes = 2: this is one machine" in result.output


def test_a_dry_run_shows_what_it_would_start_and_writes_nothing(doctor, login_node, images) -> None:
    result = doctor("--site", "localtest", "--ranks", 2, "--dry-run", "--data", images)
    assert result.exit_code == 0, result.output
    for words in ("--nodes=2", "--ntasks-per-node=2", "-m ddl_tools.launch.slurm.job"):
        assert words in result.output
    unknown = "scheduler, caches, sbatch"
    assert f"Ready for localtest: as far as is known, but not: {unknown}" in result.output
    here = ("--ranks", 2, "--dry-run", "--data", images)
    shown = doctor(*here).output
    assert "2 x " in shown
    assert "-m ddl_tools.doctor.probe" in shown
    assert "but not: scheduler" in shown
    assert not results().probes.exists()
    for program in SLURMS:
        assert login_node.calls(program) == []


def test_the_report_has_the_answer_of_sinfo(doctor, login_node: StandIns) -> None:
    shown = doctor("--site", "localtest", "--wait", 0.01).output
    assert set(NODES.splitlines()) <= {line.strip() for line in shown.splitlines()}
    assert len(login_node.calls("sinfo")) == 1  # on a dead controller it takes its time limit


def test_variables_that_change_the_job_are_shown(doctor, login_node: StandIns, monkeypatch) -> None:
    monkeypatch.setenv("SBATCH_RESERVATION", "course")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    for options in ((), ("--dry-run",)):
        shown = findings(doctor("--json", "--site", "localtest", "--wait", 0.01, *options))
        assert "SBATCH_RESERVATION=course" in shown["sbatch"]["detail"]
        assert "ignored: SBATCH_TIMELIMIT" in shown["sbatch"]["detail"]


def test_open_ports_on_nodes_that_others_may_share_are_a_finding(
    doctor, login_node, images
) -> None:
    words = ("--ranks", 2, "--dry-run", "--data", images, "--json")
    found = findings(doctor("--site", "localtest", *words))["ports"]
    assert found["state"] == "warn"
    assert "exclusive = true" in found["detail"]
    assert "ports" not in findings(doctor("--site", "generic", *words))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--site", "leonardo"), "--account PROJECT"),
        (("--site", "localtest", "--time", "soon"), "is not HH:MM:SS"),
        (("--site", "generic", "--ranks", 5), "at most 4"),
    ],
)
def test_what_does_not_fit_the_sites_file_is_found_before_sbatch_is_asked(
    doctor, login_node: StandIns, words, named
) -> None:
    found = faults(doctor, *words)["request"]
    assert found["state"] == "bad"
    assert named in found["detail"]
    assert login_node.calls("sbatch") == []


def test_what_sbatch_refuses_is_not_submitted(doctor, login_node: StandIns) -> None:
    login_node.add("sbatch", error="sbatch: error: Invalid account\n", status=1)
    assert "Invalid account" in faults(doctor, "--site", "localtest")["sbatch"]["detail"]
    assert len(login_node.calls("sbatch")) == 1
    assert not results().probes.exists()


def test_a_job_that_waits_too_long_is_unknown_and_can_be_shown_later(
    doctor, login_node: StandIns, monkeypatch
) -> None:
    monkeypatch.setattr(probes, "QUEUE_POLL_S", 0.1)
    result = doctor("--json", "--site", "localtest", "--wait", 0.01)
    found = findings(result)
    assert result.exit_code == 0
    assert found["ranks"]["state"] == "unknown"
    folder = min(results().probes.iterdir())
    assert str(folder) in found["ranks"]["remedy"]
    assert read_probe(folder).job_id == "17"
    assert (folder / "job.sh").read_text().startswith("#!/bin/bash")
    shown = doctor("--site", "localtest", "--wait", 0.01)
    assert "Ready for localtest: as far as is known, but not: ranks" in shown.output
    done = record(answer(0, cores=[0]), answer(1, cores=[0]), name=folder.name)
    write_probe(folder, done)
    assert faults(doctor, "--show", folder)["cores of ranks"]["state"] == "bad"


def when_submitted(login_node: StandIns, line: str) -> None:
    """Have `sbatch` execute a line of shell when it submits a job."""
    first, rest = (login_node.folder / "sbatch").read_text().split("\n", 1)
    login_node.script("sbatch", f'{first}\ncase "$1" in --parsable) {line};; esac\n{rest}')


def test_a_job_that_leaves_no_result_is_bad_with_its_last_lines(doctor, login_node, monkeypatch):
    monkeypatch.setattr(probes, "GRACE_S", 0.1)
    monkeypatch.setattr(probes, "QUEUE_POLL_S", 0.1)
    login_node.add("squeue", "")
    when_submitted(login_node, 'echo Lmod: unknown module >"${2%/*}/logs/slurm-17.log"')
    detail = faults(doctor, "--site", "localtest")["ranks"]["detail"]
    assert "job 17 left the queue without a result" in detail
    assert "Lmod: unknown module" in detail


def test_a_job_that_has_died_since_is_bad_when_it_is_shown(
    doctor, login_node: StandIns, monkeypatch
) -> None:
    monkeypatch.setattr(probes, "QUEUE_POLL_S", 0.1)
    doctor("--site", "localtest", "--wait", 0.01)
    monkeypatch.setattr(probes, "GRACE_S", 0.1)
    folder = min(results().probes.iterdir())
    name = job_name(folder.parent.name, [read_probe(folder).spec])
    login_node.add("squeue", f"17|{name}|PENDING|Priority\n")
    assert findings(doctor("--json", "--show", folder))["ranks"]["state"] == "unknown"
    login_node.add("squeue", "")
    assert "job 17 left the queue" in faults(doctor, "--show", folder)["ranks"]["detail"]


def interrupt_wait(login_node: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    # Not of the module `time`, whose sleep subprocess uses as well.
    clock = SimpleNamespace(sleep=interrupt, monotonic=time.monotonic)
    monkeypatch.setattr(probes, "time", clock)


def interrupt_submission(login_node: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    when_submitted(login_node, f"kill -INT {os.getpid()}")


@pytest.mark.parametrize("interrupt", [interrupt_wait, interrupt_submission])
def test_ctrl_c_cancels_the_job(doctor, login_node: StandIns, monkeypatch, interrupt) -> None:
    interrupt(login_node, monkeypatch)
    assert doctor("--site", "localtest").exit_code == 130
    assert login_node.calls("scancel") == ["17"]


def test_a_failed_probe_is_shown_with_its_reason(doctor) -> None:
    folder = results().probes / "x"
    error = Failure(kind="Killed", message="rank 1 was killed", rank=1)
    write_probe(folder, record(status="failed", error=error, name="x"))
    result = doctor("--show", folder)
    assert result.exit_code == 1
    assert "rank 1: rank 1 was killed" in result.output
    assert doctor("--show", folder / "nothing").exit_code == 1
