"""Studies on a real SLURM: four emulated nodes on this machine, and what happens to jobs there.

Whatever is done to a job, its record ends as completed, or says why not, and a second submission
takes up exactly what is left.
"""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from ddl_tools.doctor import machine
from ddl_tools.emulation.local_slurm import EmulatedSlurm
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.slurm.site import find_site
from ddl_tools.launch.slurm.submit import blocks
from ddl_tools.records.ledger import Entry, entry, is_locked, ledger
from ddl_tools.records.paths import SITES, RunFiles, results
from ddl_tools.records.probe import read_probe
from ddl_tools.records.run import read_epochs, read_record
from ddl_tools.study import Study
from tests.fields import EMULATED
from tests.frameworks.equality import interpreter
from tests.launch.running import ENDLESS, ddl, error_of, is_training, study_file, wait_for
from tests.launch.slurm import faults

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.slurm,
    pytest.mark.timeout(900),  # several waits of PATIENCE_S
]
PATIENCE_S = 240  # a start takes 10 s, and several times that on a busy machine
TWO_NODES = {"strategy": "ddp", "nodes": 2}
# Long enough to be hit in the middle, with a checkpoint to go on from.
LONG = {"model": "resnet18", "epochs": 4, "train_images": 160, "checkpoint_every": 1}


def submitted(folder: Path, **fields: object) -> list[Entry]:
    """Submit a study; return its ledger."""
    path = study_file(folder, **fields)
    again(folder)
    return ledger(Study.load(path), results())


def one_job(folder: Path, **fields: object) -> Path:
    """Submit one run; return its folder."""
    (item,) = submitted(folder, **fields)
    return item.directory


def again(folder: Path, *options: str) -> int:
    """Submit the study, or what is left of it; return how many runs that handed over."""
    done = ddl("study", "submit", folder / "small.yaml", "--site", "localtest", *options, status=0)
    return len(re.findall(r"^\d+  \S+$", done.output, re.MULTILINE))


def block_of(folder: Path, **fields: object) -> list[Path]:
    """Plan a study of one block; return the folders of its runs in their order."""
    items = ledger(Study.load(study_file(folder, **fields)), results())
    (block,) = blocks(items, find_site("localtest"))
    return [item.directory for item in block]


def job_of(run_dir: Path) -> str:
    job_id = read_record(run_dir).job_id
    assert job_id is not None
    return job_id


def left_queue(run_dir: Path) -> None:
    wait_for(lambda: job_of(run_dir) not in (slurm_cli.queue() or {}), "the job's end", PATIENCE_S)
    wait_for(lambda: not is_locked(run_dir), "the run's lock", PATIENCE_S)


def trains(run_dir: Path) -> None:
    wait_for(lambda: is_training(run_dir), "the first step", PATIENCE_S)


def has_checkpoint(run_dir: Path) -> None:
    wait_for(RunFiles(run_dir).checkpoint.exists, "the first checkpoint", PATIENCE_S)


def log_of(run_dir: Path) -> str:
    return (RunFiles(run_dir).logs / f"slurm-{job_of(run_dir)}.log").read_text()


def completed_once(run_dir: Path, epochs: int) -> None:
    """Check a completed record: one attempt completed it, and no epoch is lost or doubled."""
    record = read_record(run_dir)
    assert record.status == "completed", record.error
    assert [one.status for one in record.attempts].count("completed") == 1
    rows = [row for row in read_epochs(run_dir) if row.phase == "train"]
    assert [row.epoch for row in rows] == list(range(epochs))


def ended_with_reason(run_dir: Path) -> None:
    """Check a run that was stopped: it says why, and is not taken for complete or at work."""
    item = entry(read_record(run_dir).spec, run_dir)
    assert item.state in ("failed", "interrupted")
    assert item.reason
    assert read_record(run_dir).weights_sha256 is None


def all_complete(items: list[Entry]) -> None:
    for item in items:
        left_queue(item.directory)
        assert read_record(item.directory).status == "completed", log_of(item.directory)


@pytest.mark.parametrize(
    ("framework", "strategies", "nodes"),
    [
        ("torch", ["ddp", "horovod", "deepspeed"], 4),
        ("tensorflow", ["multiworker", "horovod"], 2),
        ("keras", ["spmd"], 2),
        ("mxnet", ["kvstore", "horovod"], 2),
    ],
)
@pytest.mark.extended
def test_every_strategy_completes_on_several_nodes(
    tmp_path: Path, localtest: EmulatedSlurm, framework: str, strategies: list[str], nodes: int
) -> None:
    if framework != "torch":
        for strategy in strategies:
            interpreter(framework, strategy)
    model = {} if framework == "torch" else {"framework": framework, "model": "resnet8"}
    items = submitted(tmp_path, **model, strategy=strategies, nodes=nodes)
    all_complete(items)
    hashes = {read_record(item.directory).weights_sha256 for item in items}
    assert framework == "torch" or len(hashes) == 1
    assert again(tmp_path) == 0


@pytest.mark.extended
def test_emulated_nodes_are_made_on_one_of_a_job(tmp_path: Path, localtest: EmulatedSlurm) -> None:
    fields = {**EMULATED, "emu_link_mbit": 50, "emu_step_ms": 200, "image_size": 8}
    warm = {"epochs": 2, "discard_steps": 1, "checkpoint_every": 0}
    (run,) = submitted(tmp_path, **fields, **warm, nodes=3)
    all_complete([run])
    assert "#SBATCH --nodes=1\n" in RunFiles(run.directory).script.read_text()
    facts = read_record(run.directory).emulation
    assert facts is not None
    assert facts.link_mbit_least == pytest.approx(50, rel=0.2)  # beside other tests


def test_variables_of_the_caller_change_no_job(
    tmp_path: Path, localtest: EmulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile's filters and account, and the session of an allocation with its memory."""
    at_work = ("--noheader", "--states=RUNNING", "--format=%A")
    localtest.call("sbatch", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 900")
    (sleeper,) = wait_for(lambda: localtest.call("squeue", *at_work).split(), "the first job", 60)
    site = tmp_path / "memory.toml"
    text = (SITES / "localtest.toml").read_text()
    site.write_text(f'{text}memory = "500M"\n')
    variables = {"SQUEUE_STATES": "RUNNING", "SBATCH_ACCOUNT": "theirs", "SBATCH_TIMELIMIT": "99"}
    inner = {"SLURM_MEM_PER_CPU": "100", "SLURM_NTASKS": "3", "SLURM_CPUS_PER_TASK": "2"}
    for name, value in {**variables, **inner}.items():
        monkeypatch.setenv(name, value)
    path = study_file(tmp_path)
    words = ("study", "submit", path, "--site", site, "--account", "mine")
    first, second = ddl(*words, status=0), ddl(*words, status=0)
    assert "in the queue" not in first.stderr  # all as the script says
    handed_over = [re.findall(r"^\d+  \S+$", one.stdout, re.MULTILINE) for one in (first, second)]
    assert [*map(len, handed_over)] == [1, 0]
    (item,) = ledger(Study.load(path), results())
    waiting = localtest.call("squeue", "--noheader", "--states=PENDING", "--format=%A|%a|%l")
    assert waiting.splitlines() == [f"{job_of(item.directory)}|mine|10:00"]
    localtest.call("scancel", sleeper)
    all_complete([item])


@pytest.mark.parametrize("hit", ["rank", "script"])
@pytest.mark.extended
def test_a_job_that_is_hit_says_why(tmp_path: Path, localtest: EmulatedSlurm, hit: str) -> None:
    run_dir = one_job(tmp_path, **{**ENDLESS, **TWO_NODES, "checkpoint_every": 1})
    trains(run_dir)
    if hit == "rank":
        faults.kill_rank(localtest, run_dir, rank=1)
    else:
        faults.kill_script(localtest, job_of(run_dir))
    left_queue(run_dir)
    ended_with_reason(run_dir)
    if hit == "rank":
        assert (error_of(run_dir).kind, error_of(run_dir).rank) == ("Killed", 1)


@pytest.mark.extended
def test_a_script_that_dies_before_its_run_is_not_submitted_again(
    tmp_path: Path, localtest: EmulatedSlurm
) -> None:
    site, path = tmp_path / "wrong.toml", study_file(tmp_path, strategy="ddp")
    site.write_text('description = "x"\nmodules = ["no-such-module"]\n')
    ddl("study", "submit", path, "--site", site, status=0)
    (item,) = ledger(Study.load(path), results())
    left_queue(item.directory)
    shown = ddl("study", "status", path, status=0).output
    assert error_of(item.directory).kind == "NotStarted"
    assert log_of(item.directory).splitlines()[-1] in shown
    assert again(tmp_path) == 0


@pytest.mark.extended
def test_a_node_that_goes_down_costs_one_attempt(tmp_path: Path, localtest: EmulatedSlurm) -> None:
    run_dir = one_job(tmp_path, **{**TWO_NODES, **LONG, "strategy": "deepspeed"})
    has_checkpoint(run_dir)
    faults.take_down(localtest, faults.nodes_of(localtest, job_of(run_dir))[-1])
    left_queue(run_dir)
    completed_once(run_dir, epochs=LONG["epochs"])


def places_of(run_dir: Path) -> list[tuple[str | None, int | None]]:
    return [(one.block, one.place) for one in read_record(run_dir).attempts]


@pytest.mark.extended
def test_a_block_shares_its_nodes_and_one_that_fails_stops_no_other(
    tmp_path: Path, localtest: EmulatedSlurm
) -> None:
    block = block_of(tmp_path, strategy=["ddp", "horovod", "deepspeed"], nodes=2)
    first, broken, last = block
    broken.mkdir(parents=True)
    RunFiles(broken).checkpoint.write_text("damaged")
    assert again(tmp_path, "--by", "block") == 3
    left_queue(last)
    job = job_of(first)
    assert {job_of(one) for one in block} == {job}
    for run_dir in (first, last):
        assert read_record(run_dir).status == "completed", log_of(run_dir)
    assert (error_of(broken).kind, error_of(broken).category) == ("RecordError", "disk")
    name = f"ddl-small-2x1-r0-job{job}.0"
    assert [places_of(one) for one in block] == [[(name, place)] for place in range(3)]
    # One after the other.
    attempts = [read_record(one).attempts[0] for one in block]
    assert all(str(one.ended_utc) <= two.started_utc for one, two in pairwise(attempts))
    assert again(tmp_path, "--by", "block") == 0
    RunFiles(broken).checkpoint.unlink()
    assert again(tmp_path, "--by", "block", "--retry-failed") == 1
    left_queue(broken)
    assert read_record(broken).status == "completed", log_of(broken)
    assert places_of(broken)[-1] == (None, None)  # it had its job to itself


def test_a_noticed_block_goes_on(tmp_path: Path, localtest: EmulatedSlurm) -> None:
    first, last = block_of(tmp_path, **{**TWO_NODES, **LONG, "strategy": ["ddp", "horovod"]})
    assert again(tmp_path, "--by", "block") == 2
    job = job_of(first)
    has_checkpoint(first)
    faults.notice_limit(localtest, job)
    left_queue(last)
    for run_dir in (first, last):
        completed_once(run_dir, epochs=LONG["epochs"])
    names = [f"ddl-small-2x1-r0-job{job}.{start}" for start in (0, 1)]
    assert places_of(first) == [(name, 0) for name in names]
    assert places_of(last) == [(names[1], 1)]
    # Of two ranks all frameworks sum alike, stopped or not.
    assert len({read_record(one).weights_sha256 for one in (first, last)}) == 1


@pytest.mark.extended
def test_a_cancelled_block_leaves_all_runs_open(tmp_path: Path, localtest: EmulatedSlurm) -> None:
    first, last = block_of(tmp_path, **{**ENDLESS, **TWO_NODES, "strategy": ["ddp", "horovod"]})
    assert again(tmp_path, "--by", "block") == 2
    trains(first)
    refused = ddl("study", "cancel", tmp_path / "small.yaml", "--run", last.name, status=1)
    assert first.name in refused.output
    slurm_cli.call("scancel", job_of(first))
    left_queue(first)
    assert error_of(first).kind == "Interrupted"
    for run_dir in (first, last):
        ended_with_reason(run_dir)
        assert entry(read_record(run_dir).spec, run_dir).state == "interrupted"
    assert again(tmp_path, "--by", "block") == 2


@pytest.mark.extended
def test_a_probe_of_the_doctor_is_a_job_like_any_other(
    localtest: EmulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "examine_packages", lambda strategies: [])
    done = ddl("doctor", "--site", "localtest", "--loader-workers", 1, "--wait", 4, "--json")
    found = {one["subject"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["ranks"]["state"] == "ok", found
    (directory,) = results().probes.iterdir()
    assert read_record(directory).job_id == read_probe(directory).job_id
    assert [one.rank for one in read_probe(directory).answers] == [0, 1]
    assert read_probe(directory).answers[0].all_reduce
