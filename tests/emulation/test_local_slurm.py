"""The private SLURM and its demonstration: what they need, touch and leave behind."""

import os
import pwd
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ddl_core.errors import NotInstalledError
from ddl_tools.emulation import local_slurm, namespaces
from ddl_tools.emulation.local_slurm import EmulatedSlurm
from ddl_tools.records.ledger import ledger
from ddl_tools.records.paths import SITES, RunFiles, results
from ddl_tools.records.run import read_record
from ddl_tools.study import Study
from tests.commands import run
from tests.launch.fixtures import Start
from tests.launch.running import study_file, wait_for

MODULE = ("-m", "ddl_tools.emulation.local_slurm")
on_slurm = pytest.mark.slurm


def execute(*command: str, below: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Execute a command beside a SLURM of two nodes, itself executed below other programs."""
    return run(*below, sys.executable, *MODULE, "--nodes", 2, *command)


def needs_user_namespaces() -> None:
    """Skip where the system allows none: the test makes one to stand in for a plain user."""
    if run("unshare", "--user", "true").returncode:
        pytest.skip("this system lets nobody make user namespaces")


@on_slurm
def test_a_job_runs_on_both_nodes_and_this_machine_is_untouched(cluster: EmulatedSlurm) -> None:
    assert cluster.call("srun", "--nodes=2", "hostname") == "slurm-local\n" * 2
    assert cluster.call("srun", "getent", "hosts", "node4").split()[0] == "10.99.0.2"
    assert socket.gethostname() != "slurm-local"
    assert "node4" not in Path("/etc/hosts").read_text()
    assert all(one.name() != "slurmctld" for one in psutil.Process().children())


@on_slurm
def test_a_command_gets_its_slurm_and_gives_its_status(cluster: EmulatedSlurm) -> None:
    done = execute("sh", "-c", "sinfo --noheader --format=%D && exit 7")
    assert (done.stdout, done.returncode) == ("2\n", 7), done.stderr


@on_slurm
def test_no_root_is_needed(cluster: EmulatedSlurm, tmp_path: Path) -> None:
    needs_user_namespaces()
    nobody = pwd.getpwnam("nobody")  # SLURM wants a user that has a name
    ids = (f"--map-user={nobody.pw_uid}", f"--map-group={nobody.pw_gid}")
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH --output={tmp_path}/out\nsrun --nodes=2 id -u\n")
    done = execute(
        *("sbatch", "--nodes=2", "--wait", str(script)), below=("unshare", "--user", *ids)
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text() == f"{nobody.pw_uid}\n" * 2


@on_slurm
def test_nothing_is_left_of_a_killed_session(cluster: EmulatedSlurm, start: Start) -> None:
    seconds = f"1000.{os.getpid()}"  # by which its processes are known
    show = f"dirname $(dirname $(command -v sbatch)); srun --nodes=2 sleep {seconds}"
    session = start(*MODULE, "sh", "-c", show)
    folder = Path(session.stdout.readline().strip())
    assert folder.is_dir()

    def sleepers() -> list[psutil.Process]:
        own = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"]]
        return [one for one in own if one.info["cmdline"][-2:] == ["sleep", seconds]]

    wait_for(lambda: len(sleepers()) >= 2, "the job")
    daemons = processes_at(folder)
    assert {one.name() for one in daemons} >= {"munged", "bash"}
    session.send_signal(signal.SIGKILL)
    wait_for(lambda: not folder.exists(), "the folder to be removed")
    wait_for(lambda: not any(one.is_running() for one in daemons), "the daemons to end")
    assert processes_at(folder) == []


def processes_at(folder: Path) -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [one for one in found if str(folder) in " ".join(one.info["cmdline"] or ())]


@pytest.mark.slow
@pytest.mark.multiprocess
@on_slurm
@pytest.mark.timeout(900)
@pytest.mark.extended
def test_a_stopped_demo_goes_on(cluster, start, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    path = study_file(tmp_path, model="resnet18", train_images=160, epochs=4, checkpoint_every=1)
    (item,) = ledger(Study.load(path), results())
    first = start(*MODULE, str(SITES / "local" / "demo.sh"), str(path))
    wait_for(RunFiles(item.directory).checkpoint.exists, "the first checkpoint", seconds=240)
    first.terminate()
    said, error = first.communicate(timeout=120)
    assert first.returncode == 130, error
    assert "stopped, with the SLURM; the same command goes on" in error
    assert f"running     {item.spec.run_id}" in said
    assert read_record(item.directory).status == "failed"  # its job was given time to say so

    second = start(*MODULE, str(SITES / "local" / "demo.sh"), str(path))
    said, error = second.communicate(timeout=480)
    assert second.returncode == 0, error
    assert f"completed   {item.spec.run_id}" in said
    assert "1 run: 1 completed\n" in said
    assert said.splitlines()[-1].startswith("next: ")
    assert len(read_record(item.directory).attempts) == 2
    assert (results().figures / "small" / "README.md").exists()


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(namespaces, "SEARCH_PATH", str(tmp_path))
    with (
        pytest.raises(NotInstalledError, match=r"slurmctld, .*apt-get install slurmctld"),
        local_slurm.running(),
    ):
        pass
