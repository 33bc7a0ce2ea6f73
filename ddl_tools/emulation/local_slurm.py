"""A private SLURM of emulated nodes on this machine, for tests and for trying a study.

    python -m ddl_tools.emulation.local_slurm [--nodes N] COMMAND...

executes COMMAND beside such a SLURM, which ends with it. Its addresses, ports, ``/etc/hosts`` and
processes are in namespaces of its own. The system kills all of it when the caller ends.
"""

import argparse
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddl_core.errors import STOPPED, DDLError, LaunchError, NotInstalledError
from ddl_tools.emulation import namespaces
from ddl_tools.processes import stoppable, undisturbed, without_slurms_options
from ddl_tools.records.paths import SITES
from ddl_tools.visible import visible

UP = SITES / "local" / "up.sh"
DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
PACKAGES = "slurmctld slurmd slurm-client munge iproute2 util-linux"
START_S = 90.0
CANCEL_S = 40.0  # a job has 20 s (KillWait of up.sh) to write down that it was stopped
END_S = 10.0
POLL_S = 0.2

# The caller's folder by name: the same folder, reached from inside.
ENTER = """#!/bin/sh
export SLURM_CONF={folder}/slurm.conf
exec nsenter {options} sh -c 'cd "$0" && exec "$@"' "$PWD" {user} {program} "$@"
"""


@dataclass(frozen=True)
class EmulatedSlurm:
    """A private SLURM that is up."""

    folder: Path
    nodes: int
    first: int  # process that all of it descends from

    @property
    def programs(self) -> Path:
        """Folder of SLURM's programs that speak to this SLURM: the first one for ``PATH``."""
        return self.folder / "bin"

    def environment(self) -> Mapping[str, str]:
        """Return the environment of a process that is to use this SLURM."""
        # What an outer job left would be taken for this SLURM's.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return {**kept, "PATH": f"{self.programs}{os.pathsep}{kept.get('PATH', os.defpath)}"}

    def call(self, program: str, *arguments: str) -> str:
        """Return the output of one of SLURM's programs; raise a `LaunchError` if it failed."""
        try:
            return subprocess.run(
                [self.programs / program, *arguments],
                env=without_slurms_options(self.environment()),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            ).stdout
        except subprocess.TimeoutExpired:
            raise LaunchError(f"{program} did not answer within 60 s") from None
        except subprocess.CalledProcessError as error:
            raise LaunchError(f"{program}: {error.stderr.strip()}") from None

    def cancel_all(self) -> None:
        """Cancel all jobs and wait until they have ended."""
        with suppress(LaunchError):  # a controller that was killed has nothing to cancel
            self.call("scancel", "--me")
            end = time.monotonic() + CANCEL_S
            while self.call("squeue", "--noheader").strip() and time.monotonic() < end:
                time.sleep(POLL_S)


def missing() -> list[str]:
    """Return the programs that this machine lacks."""
    return namespaces.missing((*DAEMONS, *CLIENTS, "ip", "unshare", "nsenter"))


@contextmanager
def running(nodes: int = 4) -> Iterator[EmulatedSlurm]:
    """Start a private SLURM; cancel its jobs and end it with the ``with`` block.

    `NotInstalledError` if one of SLURM's programs is missing. `LaunchError` if this user may not
    make namespaces, or SLURM does not come up.
    """
    if lacking := missing():
        raise NotInstalledError(
            f"a private SLURM needs {', '.join(lacking)}; on Debian or Ubuntu: "
            f"apt-get install {PACKAGES}"
        )
    folder = Path(tempfile.mkdtemp(prefix="ddl-slurm-", dir="/tmp"))  # a socket's path is short
    (folder / "bin").mkdir()
    outer = _start(folder, nodes)
    try:
        _await(outer, folder)
        (first,) = psutil.Process(outer.pid).children()
        _write_programs(folder, first.pid)
        cluster = EmulatedSlurm(folder, nodes, first.pid)
        try:
            yield cluster
        finally:
            with undisturbed():
                cluster.cancel_all()
    finally:
        with undisturbed():
            _end(outer)
            shutil.rmtree(folder, ignore_errors=True)


def _namespaces() -> list[str]:
    """Return the options of `unshare` and `nsenter` for what this SLURM has of its own."""
    user = ["--user"] if namespaces.need_user() else []
    return [*user, "--mount", "--uts", "--net", "--pid"]


def _start(folder: Path, nodes: int) -> "subprocess.Popen[bytes]":
    mapped = ["--map-root-user"] if namespaces.need_user() else []
    # The pipe is what ties its life to ours: the system closes it when this process ends.
    with (folder / "up.log").open("wb") as log:
        return subprocess.Popen(
            [
                *("unshare", *_namespaces(), *mapped, "--propagation", "private"),
                *("--fork", "--kill-child", "--mount-proc"),
                *("bash", str(UP), str(folder), str(nodes)),
                *(str(os.geteuid()), str(os.getegid())),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the caller, who cancels the jobs first
        )


def _await(outer: "subprocess.Popen[bytes]", folder: Path) -> None:
    assert outer.stdout
    readable, _, _ = select.select([outer.stdout], [], [], START_S)
    if readable and outer.stdout.readline() == b"ready\n":
        return
    said = (folder / "up.log").read_text(errors="replace").strip()
    text = f"a private SLURM did not come up: {said or f'no answer within {START_S:.0f} s'}"
    if "unshare" in said or "ermitted" in said or "denied" in said:
        text += f"\n{namespaces.PERMISSION_REMEDY}"
    raise LaunchError(text)


def _write_programs(folder: Path, first: int) -> None:
    """Write SLURM's programs for use from outside: each enters the namespaces of process `first`.

    Inside, this folder is empty, so a job finds the real ones.
    """
    options, user = [f"--target={first}", *_namespaces()], ""
    if namespaces.need_user():
        options.append("--preserve-credentials")
        user = f"unshare --user --map-user={os.geteuid()} --map-group={os.getegid()}"
    for name in (*CLIENTS, "slurmd"):
        path = folder / "bin" / name
        program = shutil.which(name, path=namespaces.SEARCH_PATH)
        text = ENTER.format(folder=folder, options=" ".join(options), user=user, program=program)
        path.write_text(text)
        path.chmod(0o755)


def _end(outer: "subprocess.Popen[bytes]") -> None:
    """Let `up.sh` end all that it started, or the system if it does not."""
    assert outer.stdin
    assert outer.stdout
    outer.stdin.close()
    try:
        outer.wait(END_S)
    except subprocess.TimeoutExpired:
        outer.kill()  # the system then kills its child, and with it all others
        outer.wait()
    outer.stdout.close()


def main(arguments: list[str]) -> int:
    """Execute a command beside a private SLURM; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m ddl_tools.emulation.local_slurm",
        description="Execute COMMAND beside a private SLURM of emulated nodes on this machine.",
    )
    parser.add_argument("--nodes", type=int, default=4, metavar="N", help="nodes [default: 4]")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    asked = parser.parse_args(arguments)
    if not asked.command or asked.nodes < 1:
        parser.error("a command and at least one node are needed, e.g.: --nodes 4 bash")
    try:
        with stoppable(), running(asked.nodes) as cluster:
            return subprocess.run(asked.command, env=cluster.environment(), check=False).returncode
    except DDLError as error:
        sys.stderr.write(visible(f"Error: {error}\n"))
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("stopped, with the SLURM; the same command goes on\n")
        return STOPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
