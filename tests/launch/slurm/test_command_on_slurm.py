"""A command of the user's in jobs: of an emulated SLURM, and in the words that others would get."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_tools.emulation.local_slurm import EmulatedSlurm
from ddl_tools.launch import commands
from ddl_tools.launch.preflight import check_run
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.slurm.site import find_site
from ddl_tools.processes import COMMAND_STEP
from ddl_tools.rank.command import words
from ddl_tools.records.ledger import Entry, entry, is_locked, ledger
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.run import read_epochs, read_record
from ddl_tools.study import Study
from tests.launch.running import ddl, is_training, wait_for
from tests.launch.slurm import faults
from tests.launch.slurm.test_container import exported
from tests.launch.slurm.test_script import plan_of, render
from tests.launch.stand_ins import StandIns

PATIENCE_S = 240
TRAIN = f"{sys.executable} train.py"
# Each rank says once where it is, and then its images as long as it may.
SCRIPT = """
    import json, os, sys, time
    import neighbour
    seen = {name: os.environ.get(name) for name in ("SLURM_JOB_ID", "SLURM_PROCID", "RANK")}
    with open(f"seen.{os.getpid()}", "w") as file:
        json.dump({**seen, "folder": os.getcwd(), "node": os.environ.get("SLURMD_NODENAME")}, file)
    while True:
        time.sleep(0.1)
        print(json.dumps({"images": 10}))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder of a user's script the current one."""
    path = tmp_path / "own work"
    path.mkdir()
    (path / "neighbour.py").write_text("")
    (path / "train.py").write_text(textwrap.dedent(SCRIPT))
    monkeypatch.chdir(path)
    return path


def study_of(folder: Path, axes: Any, **base: Any) -> Path:
    fields = {"framework": "command", "device": "cpu", "epochs": 2, "discard_steps": 2, **base}
    fields |= {} if "command" in axes else {"command": TRAIN}
    content = {"name": "own", "question": "?", "base": fields, "axes": axes}
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({**content, "repeats": 1}))
    return path


def submitted(path: Path) -> list[Entry]:
    ddl("study", "submit", path, "--site", "localtest", status=0)
    return ledger(Study.load(path), results())


def job_of(run_dir: Path) -> str:
    job_id = read_record(run_dir).job_id
    assert job_id is not None
    return job_id


def ended(run_dir: Path) -> None:
    wait_for(lambda: job_of(run_dir) not in (slurm_cli.queue() or {}), "the job's end", PATIENCE_S)
    wait_for(lambda: not is_locked(run_dir), "the run's lock", PATIENCE_S)


def log_of(run_dir: Path) -> str:
    return (RunFiles(run_dir).logs / f"slurm-{job_of(run_dir)}.log").read_text()


def seen(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(one.read_text()) for one in folder.glob("seen.*")]


def scripts(cluster: EmulatedSlurm) -> list[psutil.Process]:
    """Return the processes of the user's script."""
    found = []
    for one in faults.processes(cluster):
        try:
            found += [one] if one.cmdline()[-1:] == ["train.py"] else []
        except psutil.Error:
            continue
    return found


def rates(run_dir: Path) -> list[float]:
    assert read_record(run_dir).status == "completed", log_of(run_dir)
    return [row.throughput_samples_per_s for row in read_epochs(run_dir) if not row.cold]


def on_slurm(test: Any) -> Any:
    """Mark a test that needs the emulated SLURM."""
    for mark in (pytest.mark.slow, pytest.mark.multiprocess, pytest.mark.slurm):
        test = mark(test)
    return pytest.mark.timeout(900)(test)


@pytest.mark.parametrize(
    ("nodes", "ranks", "strategies"),
    [
        (1, 1, ["single", "torchrun", "srun"]),
        pytest.param(2, 1, ["torchrun", "srun"], marks=pytest.mark.extended),
    ],
)
@on_slurm
def test_commands_are_measured_in_jobs(
    folder: Path, localtest: EmulatedSlurm, nodes: int, ranks: int, strategies: list[str]
) -> None:
    path = study_of(folder, {"strategy": strategies}, nodes=nodes, gpus_per_node=ranks)
    items = submitted(path)
    for item in items:
        ended(item.directory)
        assert rates(item.directory) == pytest.approx([100 * nodes * ranks], rel=0.1)
        record = read_record(item.directory)
        assert record.system is not None
        assert record.system["reporting"] == nodes * ranks
    assert scripts(localtest) == []
    told = seen(folder)
    assert {one["folder"] for one in told} == {str(folder)}
    assert {one["SLURM_JOB_ID"] for one in told} == {job_of(item.directory) for item in items}
    assert len({(one["SLURM_JOB_ID"], one["node"]) for one in told}) == nodes * len(items)


@on_slurm
@pytest.mark.parametrize(("strategy", "stop"), [("srun", "cancel"), ("torchrun", "notice")])
def test_a_stopped_job_ends_its_command_and_says_why(
    folder: Path, localtest: EmulatedSlurm, strategy: str, stop: str
) -> None:
    path = study_of(folder, {}, strategy=strategy, nodes=2, epochs=100)
    (item,) = submitted(path)
    wait_for(lambda: is_training(item.directory), "the first step", PATIENCE_S)
    if stop == "cancel":
        ddl("study", "cancel", path, status=0)
    else:
        faults.notice_limit(localtest, job_of(item.directory))
    wait_for(lambda: scripts(localtest) == [], "the end of the command", 60)
    ended(item.directory)
    found = entry(item.spec, item.directory)
    if stop == "cancel":
        assert (found.state, found.category) == ("interrupted", "cancelled")
    else:  # each start begins anew: to queue it again would help nobody
        assert (found.state, found.category) == ("failed", "time_limit")
        assert "measures all epochs anew" in found.reason
    assert len(read_record(item.directory).attempts) == 1


@on_slurm
@pytest.mark.extended
def test_commands_share_a_block_and_one_that_fails_stops_no_other(
    folder: Path, localtest: EmulatedSlurm
) -> None:
    """Also where a program does not end when it is asked to: its step is not left to the next."""
    path = folder / "stubborn.py"
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    path.write_text(ignore + textwrap.dedent(SCRIPT))
    stubborn = [f"{sys.executable} stubborn.py {number}" for number in range(2)]
    path = study_of(folder, {"command": [*stubborn, "sh -c 'exit 3'"]}, strategy="srun")
    ddl("study", "submit", path, "--site", "localtest", "--by", "block", status=0)
    *good, bad = ledger(Study.load(path), results())
    ended(bad.directory)
    for item in good:
        assert rates(item.directory) == pytest.approx([100], rel=0.1)
        assert job_of(item.directory) == job_of(bad.directory)
    assert "status 3" in entry(bad.spec, bad.directory).reason


SITE = "description = 'made'\ngpus_per_node = 4\ngpu_request = 'gpus_per_task'\ncpus_per_rank = 8\n"
OF_SITE = "cpu_bind = 'cores'\ngpu_bind = 'closest'\nsrun_args = ['--network=no_vni']\n"
ALWAYS = "--network=no_vni --kill-on-bad-exit=1 --distribution=block"
RANK = "--cpus-per-task=8 --mpi=none --cpu-bind=cores --gpus-per-task=1 --gpu-bind=closest"
NODE = "--cpus-per-task=32 --mpi=none --cpu-bind=none --gpus-per-task=4 --gpu-bind=none"


@pytest.mark.parametrize(
    ("visible", "strategy", "nodes", "size", "options"),
    [
        ("leave", "srun", 2, (2, 8, 4), RANK),
        ("leave", "torchrun", 2, (2, 2, 1), NODE),
        ("leave", "torchrun", 1, (1, 1, 1), NODE),
        ("3,2,1,0", "torchrun", 2, (2, 2, 1), f"{NODE} env CUDA_VISIBLE_DEVICES=3,2,1,0"),
        ("local_rank", "torchrun", 2, (2, 2, 1), NODE),
    ],
)
def test_srun_gives_a_task_what_it_is_to_divide(
    tmp_path: Path,
    job: StandIns,
    monkeypatch: pytest.MonkeyPatch,
    visible: str,
    strategy: str,
    nodes: int,
    size: tuple[int, int, int],
    options: str,
) -> None:
    site = tmp_path / "made.toml"
    site.write_text(f"{SITE}{OF_SITE}visible_devices = '{visible}'\n")
    fields = {"framework": "command", "command": "python train.py --lr 1", "strategy": strategy}
    spec = RunSpec(**fields, nodes=nodes, gpus_per_node=4)
    for name, value in exported(render(plan_of(spec), find_site(str(site)))).items():
        monkeypatch.setenv(name, value)
    step = commands.command_step(spec)
    number = dict(zip(("nodes", "ntasks", "ntasks-per-node"), size, strict=True))
    counts = [f"--{name}={one}" for name, one in number.items()]
    assert step == [str(job.folder / "srun"), *counts, "--label", *ALWAYS.split(), *options.split()]
    own = words(spec, step)[len(step) :]
    if strategy == "srun":
        assert own == ["python", "train.py", "--lr", "1"]
    else:
        assert own[:3] == ["python", "-m", "torch.distributed.run"]
        assert own[-3:] == ["train.py", "--lr", "1"]
        assert ("--standalone" in own) == (nodes == 1)
        assert ("--rdzv-endpoint" in own) == (nodes > 1)


def test_the_one_process_of_ours_is_no_task(job: StandIns, tmp_path: Path) -> None:
    spec = RunSpec(framework="command", command="python train.py", strategy="srun", nodes=2)
    found = commands.command(spec, "worker", tmp_path, tmp_path / "logs")
    assert "srun" not in found.step[0]
    assert found.step[-3:] == ("-m", "worker", str(tmp_path))
    assert "--ntasks=2" in commands.environment(spec)[COMMAND_STEP]


def test_a_script_names_the_commands_of_its_runs_alone(folder: Path) -> None:
    texts = ["python 'my train.py' --lr 1", "python other.py"]
    path = study_of(folder, {"command": texts}, strategy="srun")
    words = ("study", "submit", path, "--site", "localtest", "--dry-run")
    shown = ddl(*words, "--all-scripts", status=0).output
    first, second = shown.split("#!/bin/bash")[1:]
    for text, own, other in ((first, *texts), (second, *reversed(texts))):
        script = text.partition('exit "$status"')[0]
        assert f"#   {own}\n" in script
        assert other not in script
        values = exported(script)
        assert len(values["DDL_COMMANDS"].split()) == 1
        assert values["DDL_COMMANDS_FOLDER"] == str(folder)
    assert not results().root.exists()
    block = ddl(*words, "--by", "block", status=0).output
    assert len(exported(block)["DDL_COMMANDS"].split()) == 2


def test_srun_outside_a_job_is_refused_before_anything_starts(folder: Path) -> None:
    path = study_of(folder, {"strategy": ["single", "srun"]})
    done = ddl("study", "run", path, status=1)
    assert "strategy = 'srun', but this is no SLURM job" in done.output
    assert not [*results().runs.rglob("run.json")]
    assert seen(folder) == []
    with pytest.raises(SpecError, match="ddl study submit"):
        check_run(Study.load(path).expand()[1])


def test_a_container_is_refused_before_a_job_is_submitted(
    folder: Path, job: StandIns, monkeypatch: pytest.MonkeyPatch, sbatch: Path
) -> None:
    site = folder / "boxed.toml"
    site.write_text("description = 'x'\n[container]\nruntime = 'apptainer'\nimage = '/x.sif'\n")
    path = study_of(folder, {})
    done = ddl("study", "submit", path, "--site", site, status=1)
    assert "framework = 'command', but this site runs ranks in a container" in done.output
    assert not sbatch.exists()
    monkeypatch.setenv("DDL_CONTAINER", '{"runtime": "apptainer", "image": "/x.sif"}')
    with pytest.raises(SpecError, match="container"):
        check_run(Study.load(path).expand()[0])
