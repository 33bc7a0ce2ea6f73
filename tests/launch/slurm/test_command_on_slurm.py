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
    python = sys.executable
    fields = {"framework": "command", "command": f"{python} train.py", "device": "cpu", **base}
    rest = {"epochs": 2, "discard_steps": 2}
    content = {"name": "own", "question": "?", "base": {**rest, **fields}, "axes": axes}
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


slurm = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.slurm,
    pytest.mark.timeout(900),
]


def marked(*values: Any, extended: bool = False) -> Any:
    return pytest.param(*values, marks=[pytest.mark.extended] if extended else [])


@pytest.mark.parametrize(
    ("nodes", "ranks", "strategies"),
    [
        (1, 1, ["single", "torchrun", "srun"]),
        marked(2, 1, ["torchrun", "srun"], extended=True),
    ],
)
@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.slurm
@pytest.mark.timeout(900)
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
