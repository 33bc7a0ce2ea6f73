"""What goes wrong on clusters, done on purpose to a job of a private SLURM.

Every function ends something at once, as a defect would, and raises `LaunchError` if it is not
running; `mend` makes the nodes usable again.
"""

from contextlib import suppress
from pathlib import Path

import psutil

from ddl_core.errors import LaunchError
from ddl_tools.emulation.local_slurm import EmulatedSlurm


def idle_nodes(cluster: EmulatedSlurm) -> int:
    """Return how many nodes are up and have no job."""
    states = cluster.call("sinfo", "--noheader", "--Node", "--format=%t").split()
    return states.count("idle")


def processes(cluster: EmulatedSlurm) -> list[psutil.Process]:
    """Return all processes of a private SLURM: daemons, jobs and their ranks."""
    return psutil.Process(cluster.first).children(recursive=True)


def daemon(cluster: EmulatedSlurm, node: str) -> psutil.Process:
    """Return the daemon of a node."""
    for process in processes(cluster):
        with suppress(psutil.Error):
            if process.cmdline()[-2:] == ["-N", node]:
                return process
    raise LaunchError(f"the daemon of {node} is not running")


def nodes_of(cluster: EmulatedSlurm, job_id: str) -> list[str]:
    """Return the nodes of a job, the one of its script first; none if it has none now."""
    asked = ("--noheader", f"--jobs={job_id}", "--states=all", "--format=%N")
    names = cluster.call("squeue", *asked).strip()
    return cluster.call("scontrol", "show", "hostnames", names).split() if names else []


def notice_limit(cluster: EmulatedSlurm, job_id: str) -> None:
    """Send the notice of the time limit: SLURM itself looks at the time only every 30 s."""
    cluster.call("scancel", "--batch", "--signal=USR1", job_id)


def take_down(cluster: EmulatedSlurm, node: str) -> None:
    """Declare a node broken: SLURM ends or requeues its jobs."""
    cluster.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=fault")


def kill_daemon(cluster: EmulatedSlurm, node: str) -> None:
    """Kill the daemon of a node; SLURM gives the node up after `SlurmdTimeout` of ``up.sh``."""
    daemon(cluster, node).kill()


def kill_script(cluster: EmulatedSlurm, job_id: str) -> None:
    """Kill the script of a job."""
    name = f"/job{int(job_id):05d}/slurm_script"
    for process in processes(cluster):
        with suppress(psutil.Error):
            if any(word.endswith(name) for word in process.cmdline()):
                process.kill()
                return
    raise LaunchError(f"the script of job {job_id} is not running")


def kill_rank(cluster: EmulatedSlurm, run_dir: Path, rank: int) -> None:
    """Kill one rank of a run."""
    for process in processes(cluster):
        with suppress(psutil.Error):
            command = process.cmdline()
            # Its shell carries the same words, and its loader's processes the same environment.
            if command[-1:] == [str(run_dir)] and command[-3:-1] == ["-m", "ddl_tools.rank.worker"]:
                environment = process.environ()
                if environment.get("RANK") == str(rank):
                    process.kill()
                    return
    raise LaunchError(f"rank {rank} of {run_dir.name} is not running")


def mend(cluster: EmulatedSlurm) -> None:
    """Start the daemons that are gone and take all nodes into service again."""
    for number in range(1, cluster.nodes + 1):
        node = f"node{number}"
        try:
            daemon(cluster, node)
        except LaunchError:
            cluster.call("slurmd", "-N", node)
        with suppress(LaunchError):  # it refuses for a node that is in service
            cluster.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
