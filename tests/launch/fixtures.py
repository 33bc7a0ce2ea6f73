import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ddl_core.errors import LaunchError, NotInstalledError
from ddl_tools.emulation.local_slurm import EmulatedSlurm, running
from ddl_tools.processes import import_path
from tests.launch.running import wait_for
from tests.launch.slurm.faults import idle_nodes, mend
from tests.launch.stand_ins import SRUN, StandIns

Mount = Callable[[str], Path]
NUMBERED = '#!/bin/sh\necho "$*" >>{calls}\nwc -l <{calls}\n'


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mount a file system in memory with given options, e.g. ``"size=1m"``; needs root."""
    mounted: list[Path] = []

    def make(options: str) -> Path:
        folder = tmp_path / f"mount{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"cannot mount: {error}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python program of this environment; it is ended with the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": import_path()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    """Programs that take the place of SLURM's on PATH; see `stand_ins`."""
    found = StandIns(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(found.folder), prepend=os.pathsep)
    return found


@pytest.fixture
def sbatch(tmp_path: Path, stand_ins: StandIns) -> Path:
    """A stand-in that numbers its jobs from 1; what it was called with is in the file returned."""
    calls = tmp_path / "calls"
    stand_ins.script("sbatch", NUMBERED.format(calls=calls))
    for program in ("squeue", "scontrol", "scancel", "sacct"):
        stand_ins.add(program)
    return calls


@pytest.fixture
def job(stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    """What the script of a job on two nodes sets, and a stand-in for srun."""
    stand_ins.python("srun", SRUN)
    values = {
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NUM_NODES": "2",
        "DDL_SRUN": "srun --mpi=none env -u NOTHING",
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HOROVOD_GLOO_IFACE": "lo",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return stand_ins


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmulatedSlurm]:
    """Start a SLURM of four emulated nodes; where there is none to be had, CI says so."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(running(nodes=4))
        except (NotInstalledError, LaunchError) as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
        yield found


@pytest.fixture
def localtest(cluster: EmulatedSlurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedSlurm]:
    """Let SLURM's programs be those of `cluster`; afterwards it is empty and whole again."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(cluster.programs), prepend=os.pathsep)
    yield cluster
    cluster.cancel_all()
    mend(cluster)
    wait_for(lambda: idle_nodes(cluster) == cluster.nodes, "all nodes to be idle")
