import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddl_tools.cli import main
from ddl_tools.doctor import machine
from ddl_tools.doctor.finding import Finding
from tests.launch.stand_ins import StandIns

NODES = """\
PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST
main*        up   infinite      4   idle node[1-4]
"""

Doctor = Callable[..., Result]


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every package answer at once, on a machine with cores enough."""

    def answers(name: str, required: bool) -> Finding:
        return Finding(name, "ok", "1.0")

    monkeypatch.setattr(machine, "ask", answers)
    monkeypatch.setattr(machine, "installed", answers)
    monkeypatch.setattr(machine.limits, "cores", lambda: 4.0)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Make a data folder of empty class folders."""
    for split in ("train", "val"):
        for name in ("ant", "bee"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
    return tmp_path / "images"


@pytest.fixture
def alone(stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    """Be a machine on which no SLURM answers, outside a job."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    stand_ins.add("sinfo", error="sinfo: error: no controller", status=1)
    return stand_ins


@pytest.fixture
def login_node(alone: StandIns) -> StandIns:
    """Be a login node of a SLURM of four nodes that takes every job and starts none."""
    alone.add("sinfo", NODES)
    alone.add("sbatch", "17\n")
    alone.add("squeue", "17|ddl-x|PENDING|Priority\n")
    alone.add("scontrol")
    alone.add("scancel")
    return alone


@pytest.fixture
def doctor() -> Doctor:
    return lambda *words: CliRunner().invoke(main, ["doctor", *map(str, words)])


def findings(result: Result) -> dict[str, dict[str, str]]:
    """Return the findings of ``ddl doctor --json`` by subject."""
    return {one["subject"]: one for one in json.loads(result.stdout)["findings"]}


def faults(doctor: Doctor, *words: object) -> dict[str, dict[str, str]]:
    """Return the findings of a call that ends as not ready."""
    result = doctor("--json", *words)
    assert result.exit_code == 1, result.output
    return findings(result)
