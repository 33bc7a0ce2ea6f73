"""Submitting a study: what it costs, what is left out, what is written, what is refused.

SLURM's programs are stand-ins that record their calls: they show what is asked of SLURM, and
nothing about what it does: that is in `test_real_slurm`.
"""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from ddl_core.config import RunSpec
from ddl_tools.cli.answers import StudySubmit
from ddl_tools.launch.slurm import submit
from ddl_tools.launch.slurm.script import JobPlan
from ddl_tools.launch.slurm.site import find_site
from ddl_tools.records.failures import remedy
from ddl_tools.records.ledger import Entry, exclusive, ledger, plan
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.run import Failure, Status, read_record
from ddl_tools.study import Study
from tests.launch.running import change, ddl, finish, study_file
from tests.launch.stand_ins import StandIns

GENERIC = find_site("generic")


@pytest.fixture
def slurm(stand_ins: StandIns) -> StandIns:
    """Stand-ins for a SLURM whose queue is empty."""
    stand_ins.add("sbatch", "17\n")
    for program in ("squeue", "scontrol", "scancel"):
        stand_ins.add(program)
    return stand_ins


def submitted(path: Path, *options: object, status: int = 0) -> Result:
    """Submit a study; the command has to end with `status`."""
    return ddl("study", "submit", path, "--site", "generic", *options, status=status)


def two_runs(folder: Path, **fields: Any) -> tuple[Path, list[Entry]]:
    """Write a study of two runs; return its file and its ledger."""
    path = study_file(folder, **{"strategy": "ddp", "nodes": [1, 4], **fields})
    return path, ledger(Study.load(path), results())


@pytest.mark.parametrize(
    ("site", "fields", "asked", "hours"),
    [
        ("generic", {}, "01:00:00", 1),
        ("generic", {"nodes": 4}, "00:30:00", 2),
        ("generic", {"nodes": 256}, "24:00:00", 6144),
        ("generic", {"nodes": 2}, None, 2),
        ("localtest", {"nodes": 3}, "00:20:00", 2),  # it may start twice
        ("localtest", {"nodes": 3, "checkpoint_every": 0}, "00:20:00", 1),
    ],
)
def test_node_hours(site: str, fields: dict[str, Any], asked: str | None, hours: float) -> None:
    spec = RunSpec(strategy="ddp", **fields)
    plan = JobPlan(time=asked).of([Entry(spec, Path("small/run"), "missing")])
    assert plan.node_hours(find_site(site)) == pytest.approx(hours)


def test_costs_are_added_per_configuration_and_leave_out_what_is_complete(tmp_path: Path) -> None:
    path = study_file(tmp_path, strategy=["ddp", "horovod"], nodes=[1, 4])
    study = Study.load(path)
    change(plan(study, results())[3], status="completed")
    entries = ledger(study, results())
    plans = submit.prepare(entries, GENERIC, JobPlan(time="02:00:00"))
    rows = [line.split() for line in submit.show_costs(entries, plans, GENERIC).splitlines()[1:]]
    assert rows == [
        ["PyTorch-DDP", "2", "0", "2", "10.0"],
        ["Horovod", "2", "1", "1", "2.0"],
        ["total", "4", "1", "3", "12.0"],
    ]


def test_the_costs_of_a_single_configuration_have_its_title() -> None:
    spec = RunSpec(strategy="ddp", loader="dali_cpu", model="resnet50", nodes=2)
    line = submit.show_costs([Entry(spec, Path("a"), "missing")], [], GENERIC).splitlines()[1]
    assert line.startswith("PyTorch-DDP, DALI (CPU), ResNet50  ")


def test_a_dry_run_shows_scripts_and_costs_alone(tmp_path: Path, slurm: StandIns) -> None:
    path, _ = two_runs(tmp_path)
    shown = submitted(path, "--dry-run", "--all-scripts")
    assert shown.output.count("#!/bin/bash") == 2
    assert "#SBATCH --nodes=4\n" in shown.output
    assert "--all-scripts" not in shown.output
    assert shown.output.splitlines()[-1].split() == ["total", "2", "0", "2", "5.0"]
    shown = submitted(path, "--dry-run")
    assert shown.output.count("#!/bin/bash") == 1
    assert "queue" not in shown.stderr  # which says nothing of runs without a job
    assert "1 more script" in shown.output
    assert "--all-scripts" in shown.output
    assert not results().root.exists()
    change(plan(Study.load(path), results())[0], status="submitted", job_id="17")
    shown = submitted(path, "--dry-run")
    assert "queue was not read; runs of 1 job (17)" in shown.stderr
    assert shown.output.splitlines()[-1].split()[:4] == ["total", "2", "0", "1"]
    assert [slurm.calls(one) for one in ("squeue", "sbatch", "scontrol")] == [[], [], []]


def test_variables_that_change_a_submission_are_shown_with_the_plan(
    tmp_path: Path, slurm: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = two_runs(tmp_path)
    assert "environment" not in submitted(path, "--dry-run").stderr
    monkeypatch.setenv("SBATCH_RESERVATION", "course")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    for options in (("--dry-run",), ()):
        said = submitted(path, *options).stderr
        assert said.count("from the environment: SBATCH_RESERVATION=course\n") == 1
        assert said.count("ignored: SBATCH_TIMELIMIT;") == 1


def test_jobs_that_slurm_has_with_other_limits_are_named_and_stay(
    tmp_path: Path, slurm: StandIns
) -> None:
    path, items = two_runs(tmp_path)
    slurm.script("squeue", '#!/bin/sh\ncase "$*" in *%l*) echo "17|mine|2:00:00|4";; esac\n')
    done = submitted(path, "--account", "mine", "--time", "00:30:00")
    assert "warning: 1 job in the queue (17): time 2:00:00" in done.stderr
    assert slurm.calls("scancel") == []
    assert read_record(items[1].directory).status == "submitted"


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("command", ["submit", "plan"])
def test_open_ports_on_nodes_that_others_may_share_are_named(tmp_path: Path, command: str) -> None:
    def warned(path: Path, site: str) -> int:
        shown = ddl("study", command, path, "--site", site, "--dry-run", status=0)
        return shown.stderr.count("warning: ports without authentication: torch ddp.")

    path, _ = two_runs(tmp_path, strategy=["ddp"], train_images=320)
    assert warned(path, "generic") == 0  # nodes of its own
    assert warned(path, "localtest") == 1
    alone = study_file(tmp_path, strategy="single", nodes=1, gpus_per_node=1)
    assert warned(alone, "localtest") == 0


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("by", ["run", "block"])
def test_the_costs_are_the_last_lines(tmp_path: Path, by: str) -> None:
    path, _ = two_runs(tmp_path, repeats=2)
    lines = submitted(path, "--dry-run", "--by", by).stdout.splitlines()
    assert lines[-1].startswith("total")
    assert lines[-3].startswith("configuration")


def test_a_plan_for_a_site_shows_its_costs_without_an_account(tmp_path: Path) -> None:
    path, _ = two_runs(tmp_path, gpus_per_node=4, train_images=320)
    shown = ddl("study", "plan", path, "--site", "juwels_booster", "--dry-run", status=0)
    (total,) = [line for line in shown.output.splitlines() if line.startswith("total")]
    assert total.split() == ["total", "2", "0", "2", "5.0"]
    assert "#!/bin/bash" not in shown.output
    too_many, _ = two_runs(tmp_path, gpus_per_node=5, device="cuda", train_images=320)
    shown = ddl("study", "plan", too_many, "--site", "juwels_booster", "--dry-run", status=0)
    assert "gpus_per_node = 5, but a node of this site has 4" in shown.stderr


def test_every_run_becomes_a_job_and_its_record_says_so(tmp_path: Path, slurm: StandIns) -> None:
    path, items = two_runs(tmp_path)
    done = submitted(path, "--time", "00:30:00")
    for item in items:
        record = read_record(item.directory)
        assert (record.status, record.job_id) == ("submitted", "17")
        assert f"17  {item.spec.run_id}\n" in done.output
        assert RunFiles(item.directory).logs.is_dir()
        assert "#SBATCH --time=00:30:00\n" in RunFiles(item.directory).script.read_text()
    scripts = [f"--parsable {RunFiles(item.directory).script}" for item in items]
    assert slurm.calls("sbatch") == scripts


def test_what_is_complete_running_or_queued_is_never_submitted(
    tmp_path: Path, slurm: StandIns
) -> None:
    path, _ = two_runs(tmp_path, classes=[5, 6])
    complete, queued, at_work, failed = plan(Study.load(path), results())
    change(complete, status="completed")
    change(queued, status="submitted", job_id="1")
    change(at_work, status="running", job_id="2")  # its lock is not seen from here
    change(failed, status="failed", error=Failure(kind="DataError", message="x"))
    lines = [f"1|ddl-{queued.spec.run_id}|PENDING|Priority"]
    lines += [f"2|ddl-{at_work.spec.run_id}|RUNNING|None"]
    slurm.add("squeue", "\n".join(lines) + "\n")
    submitted(path)
    assert slurm.calls("sbatch") == []
    submitted(path, "--retry-failed")
    assert slurm.calls("sbatch") == [f"--parsable {RunFiles(failed.directory).script}"]


def test_a_job_that_slurm_holds_is_shown_and_can_be_cancelled(
    tmp_path: Path, slurm: StandIns
) -> None:
    path, _ = two_runs(tmp_path)
    held, waiting = plan(Study.load(path), results())
    change(held, status="failed", job_id="1", error=Failure(kind="Interrupted", message="x"))
    change(waiting, status="submitted", job_id="2")
    lines = [f"1|ddl-{held.spec.run_id}|PENDING|launch failed requeued held"]
    lines += [f"2|ddl-{waiting.spec.run_id}|PENDING|JobHeldUser"]
    slurm.add("squeue", "\n".join(lines) + "\n")
    submitted(path)
    assert slurm.calls("sbatch") == slurm.calls("scontrol") == []
    shown = ddl("study", "status", path).output
    assert "launch failed requeued held" in shown
    assert "JobHeldUser" in shown
    ddl("study", "cancel", path, status=0)
    assert slurm.calls("scancel") == ["1 2"]


def test_as_json_jobs_have_their_numbers_also_those_before_an_error(
    tmp_path: Path, slurm: StandIns
) -> None:
    path, entries = two_runs(tmp_path)
    once = tmp_path / "once"
    slurm.script("sbatch", f"#!/bin/sh\nmkdir {once} 2>/dev/null || exit 1\necho 17\n")
    said = submitted(path, "--json", status=1)
    found = StudySubmit.model_validate_json(said.stdout)
    first, second = (item.spec.run_id for item in entries)
    assert {run: job.job_id for job in found.jobs for run in job.runs} == {
        first: "17",
        second: None,
    }
    slurm.add("sbatch", "18\n")
    slurm.add("squeue", "17|ddl-other|PENDING|x\n")
    (left,) = StudySubmit.model_validate_json(submitted(path, "--json").stdout).jobs[-1:]
    assert (left.job_id, left.runs) == ("18", [second])


@pytest.mark.parametrize("program", ["squeue", "sbatch"])
def test_what_slurm_refuses_changes_no_run(tmp_path: Path, slurm: StandIns, program: str) -> None:
    path, _ = two_runs(tmp_path)
    slurm.add(program, error=f"{program}: error: Unable to contact controller", status=1)
    refused = submitted(path, status=1)
    assert "Unable to contact" in refused.output
    assert ledger(Study.load(path), results())[0].state in ("missing", "planned")
    assert len(slurm.calls("sbatch")) == (program == "sbatch")


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({}, ["--site", "mars"], "unknown site 'mars'"),
        ({}, ["--site", "leonardo"], "--account PROJECT"),
        ({}, ["--site", "generic", "--time", "soon"], "is not HH:MM:SS"),
        ({"loader": "native"}, ["--site", "generic"], "the data folder"),
        ({"device": "cuda"}, ["--site", "localtest"], "this site has no GPUs"),
        ({"train_images": 8}, ["--site", "generic"], "global batch of 32 images"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_submitted(
    tmp_path: Path, slurm: StandIns, fields: dict[str, Any], options: list[str], message: str
) -> None:
    path, items = two_runs(tmp_path, **{"device": "auto", **fields})
    refused = ddl("study", "submit", path, *options, status=1)
    assert message in refused.output
    assert slurm.calls("sbatch") == []
    assert not items[0].directory.exists()


def test_ctrl_c_leaves_no_job_that_is_in_no_record(tmp_path: Path, slurm: StandIns) -> None:
    path, items = two_runs(tmp_path)
    answer = (slurm.folder / "sbatch").read_text()
    slurm.script("sbatch", answer.replace("#!/bin/sh\n", f"#!/bin/sh\nkill -INT {os.getpid()}\n"))
    with pytest.raises(KeyboardInterrupt):
        list(submit.submit(Study.load(path), results(), GENERIC, JobPlan()))
    assert len(slurm.calls("sbatch")) == 1
    first, second = (read_record(item.directory) for item in items)
    assert (first.status, first.job_id) == ("submitted", "17")
    assert (second.status, second.job_id) == ("planned", None)


@pytest.mark.parametrize("status", ["running", "failed", "completed", None])
def test_what_a_job_wrote_or_locked_that_began_at_once_is_left_alone(
    tmp_path: Path, slurm: StandIns, status: Status | None
) -> None:
    path = study_file(tmp_path, strategy="ddp")
    (item,) = plan(Study.load(path), results())
    record, made = RunFiles(item.directory).record, tmp_path / "made.json"
    before = read_record(item.directory)
    changes = {"status": status, "job_id": "17"} if status else {}
    made.write_text(before.model_copy(update=changes).model_dump_json())
    answer = (slurm.folder / "sbatch").read_text()  # the job begins before `sbatch` answers
    slurm.script("sbatch", answer.replace("#!/bin/sh\n", f"#!/bin/sh\nmv {made} {record}\n"))
    locked = nullcontext() if status else exclusive(RunFiles(item.directory).lock, "the run")
    with locked:
        submitted(path)
    assert read_record(item.directory) == before.model_copy(update=changes)


def test_status_shows_what_the_queue_says(tmp_path: Path, slurm: StandIns) -> None:
    path, items = two_runs(tmp_path)
    submitted(path)
    slurm.add("squeue", f"17|ddl-{items[0].spec.run_id}|RUNNING|None\n")
    first, second, counted = ddl("study", "status", path).output.splitlines()[:3]
    assert counted == "2 runs: 1 interrupted, 1 running"
    assert first == f"running     {items[0].spec.run_id}  job 17 RUNNING"
    assert second.startswith(f"interrupted {items[1].spec.run_id}  job 17 left the queue")
    slurm.add("squeue", error="no controller", status=1)
    shown = ddl("study", "status", path, status=0)
    assert "warning: without the state of the jobs: squeue" in shown.output
    assert f"submitted   {items[0].spec.run_id}\n" in shown.output


def test_a_queue_that_nothing_waits_in_is_not_asked(tmp_path: Path, slurm: StandIns) -> None:
    path, items = two_runs(tmp_path)
    slurm.add("squeue", error="squeue: error: no DNS\nsqueue: fatal: no configuration", status=1)
    assert ddl("study", "status", path, status=0).stderr == ""
    ran_here, submitted_once = plan(Study.load(path), results())
    finish(ran_here.directory)
    finish(submitted_once.directory, job_id="17")
    shown = ddl("study", "status", path, status=0)
    assert "2 completed" in shown.stdout
    assert shown.stderr == ""
    change(items[1], status="submitted")
    (line,) = ddl("study", "status", path, status=0).stderr.splitlines()
    assert line.startswith("warning: ")
    assert line.endswith("squeue: fatal: no configuration")


def test_a_job_that_died_before_its_run_began_is_shown_and_not_repeated(
    tmp_path: Path, slurm: StandIns
) -> None:
    path, items = two_runs(tmp_path)
    submitted(path)
    slurm.add("sacct", error="Slurm accounting storage is disabled", status=1)
    for item in items:
        log = RunFiles(item.directory).logs / "slurm-17.log"
        log.write_text(f"Lmod: unknown module of {item.spec.nodes}\n\n  see module spider\n")
    for again in (ddl("study", "status", path, status=0), submitted(path)):
        lines = again.output.splitlines()
        for item, line in zip(items, lines, strict=False):
            assert line.startswith(f"failed      {item.spec.run_id}  [environment]")
            assert "before the run began (log: logs/slurm-17.log)" in line
        assert str(items[0].directory) in again.output  # of one job the lines as well
        assert "Lmod: unknown module of 1\n" in again.output
        assert "Lmod: unknown module of 4" not in again.output
    assert "not submitted: 2 failed" in again.output
    assert len(slurm.calls("sbatch")) == 2
    submitted(path, "--retry-failed")
    assert len(slurm.calls("sbatch")) == 4


@pytest.mark.usefixtures("slurm")
def test_a_damaged_run_that_is_left_alone_is_not_called_failed(tmp_path: Path) -> None:
    path, _ = two_runs(tmp_path)
    item = plan(Study.load(path), results())[0]
    RunFiles(item.directory).record.write_text("{")
    (line,) = (one for one in submitted(path).output.splitlines() if "not submitted: 1 " in one)
    assert "damaged" in line


def test_status_shows_the_class_of_a_failure_and_its_remedy(tmp_path: Path) -> None:
    path, _ = two_runs(tmp_path)
    item = plan(Study.load(path), results())[0]
    change(item, status="failed", error=Failure.of("OutOfMemoryError", "CUDA out of memory"))
    lines = ddl("study", "status", path).output.splitlines()
    assert lines[0].startswith(f"failed      {item.spec.run_id}  [out_of_memory]  OutOfMem")
    assert lines[3] == remedy("out_of_memory")


def test_an_interleaved_study_hears_of_blocks(tmp_path: Path) -> None:
    path, _ = two_runs(tmp_path, nodes=[1])
    assert "--by block" not in submitted(path, "--dry-run").stderr
    path.write_text(f"{path.read_text()}\ninterleave: {{reference: {{strategy: ddp}}}}\n")
    assert "jobs do not interleave: with --by block" in submitted(path, "--dry-run").stderr
    assert "--by block" not in submitted(path, "--dry-run", "--by", "block").stderr


def test_what_may_cost_a_fortune_is_not_submitted_unasked(tmp_path: Path, slurm: StandIns) -> None:
    path, _ = two_runs(tmp_path)
    length = ("--time", "6000:00:00")
    shown = submitted(path, *length, "--dry-run")
    assert "nothing would be submitted: these jobs may cost 30,000 node-hours" in shown.stderr
    refused = submitted(path, *length, status=1)
    assert "more than --max-node-hours 10,000; if that is meant" in refused.stderr
    assert not slurm.calls("sbatch")
    assert not list(results().runs.glob("*/*/run.json"))
    submitted(path, *length, "--max-node-hours", 30_000)
