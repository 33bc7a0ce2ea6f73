"""What a login node can tell of a site: scheduler, modules, caches, and what jobs must also see.

Whether SLURM has nodes for a job, `sbatch --test-only` says, which also knows accounts and QOS.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

from ddl_core import system
from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.doctor.finding import Finding, State
from ddl_tools.launch.slurm import scheduler
from ddl_tools.launch.slurm.script import USER
from ddl_tools.launch.slurm.site import Site
from ddl_tools.records.paths import PROJECT, Tree
from ddl_tools.records.provenance import file_system

SHELL_PATIENCE_S = 60.0
LATE = 124  # exit code of `timeout`
# Of these each machine has its own.
LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "devtmpfs"}
    | {"overlay", "aufs", "squashfs"}
)

Place = Literal["job", "login node", "machine"]


def where() -> tuple[Place, Finding]:
    """Say whether this is a SLURM job, a login node or a machine by itself, and what `sinfo` says.

    It is asked once: where the controller is dead, each question takes its whole time limit.
    """
    try:
        found = Finding("scheduler", "ok", f"sinfo says:\n{scheduler.call('sinfo').rstrip()}")
    except LaunchError as error:
        remedy = "run ddl doctor --site on a login node of the machine, where sbatch works"
        found = Finding("scheduler", "bad", str(error).splitlines()[0], remedy)
    if "SLURM_JOB_ID" in os.environ:
        return "job", found
    return "login node" if found.state == "ok" else "machine", found


def examine(site: Site, spec: RunSpec, tree: Tree) -> list[Finding]:
    """Return what can be found out about a site here, without starting anything on its nodes."""
    return [_modules(site), caches(site), *shared(spec, tree)]


def verdict(script: str) -> Finding:
    """Ask `sbatch` itself whether it would take a job."""
    with system.Passing() as folder:
        path = Path(folder) / "job.sh"
        path.write_text(script, encoding="utf-8")
        try:
            scheduler.call("sbatch", "--test-only", str(path))
        except LaunchError as error:
            reason = str(error).replace(str(path), "the job").splitlines()[0]
            remedy = "--account, --partition, --time, --ranks, --nodes; the site's file"
            return Finding("sbatch", "bad", reason, remedy)
    return Finding("sbatch", "ok", "would take the job")


def _modules(site: Site) -> Finding:
    """Load the site's modules in a shell of their own, as its jobs do."""
    names = " ".join(site.modules)
    if not names:
        return Finding("modules", "ok", "none needed")
    remedy = "modules in the site's file; what there is: module avail (or module spider NAME)"
    done = _shell(f"module purge; module load {names}")
    if done.returncode == LATE:
        return Finding("modules", "bad", f"{names}: over {SHELL_PATIENCE_S:.0f} s", remedy)
    # Older module systems report success whatever happens.
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    wrong = [line for line in said if "error" in line.lower() or "unable" in line.lower()]
    if done.returncode == 0 and not wrong:
        return Finding("modules", "ok", names)
    last = (wrong or said or [f"exit code {done.returncode}"])[0]
    return Finding("modules", "bad", f"{names}: {last}", remedy)


def caches(site: Site) -> Finding:
    """Say whether the site's folder for caches can be written here, and on what it is."""
    remedy = "caches in the site's file: a folder that jobs may write, e.g. on the scratch disk"
    # With a variable that is not set, the folder would be another one: e.g. in the system's root.
    name = f'set -u; USER="{USER}"; d="{site.caches}"'
    done = _shell(f'{name} && printf "%s" "$d" && mkdir -p -m 700 "$d" && test -w "$d"')
    if done.returncode == LATE:
        return Finding("caches", "bad", f"over {SHELL_PATIENCE_S:.0f} s", remedy)
    folder = Path(done.stdout or site.caches)
    if done.returncode:
        said = (done.stderr.strip() or "may not be written").splitlines()[-1]
        return Finding("caches", "bad", f"{folder}: {said}", remedy)
    try:
        system.require(folder)
    except LaunchError as error:
        return Finding("caches", "bad", str(error), remedy)
    return Finding("caches", "ok", f"{folder} on {file_system(folder)}")


def _shell(line: str) -> "subprocess.CompletedProcess[str]":
    """Run a line in a login shell; `timeout` ends it with all that it started."""
    limited = ["timeout", "--kill-after=5", f"{SHELL_PATIENCE_S}", "bash", "-lc", line]
    return subprocess.run(
        limited, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


def shared(spec: RunSpec, tree: Tree) -> list[Finding]:
    """Say of what every node must see whether it lies on a file system of this machine alone."""
    found = []
    places = {"environment": Path(sys.prefix), "project": PROJECT, "results": tree.root}
    for subject, place in places.items():
        kind = file_system(place)
        state: State = "warn" if kind in LOCAL and spec.nodes > 1 else "ok"
        detail = f"{place} on {kind}"
        if state == "warn":
            detail += ", a file system that machines do not share as a rule"
        remedy = "if nodes do not see it, the probe's job fails: put it on a shared file system"
        found.append(Finding(f"{subject} shared", state, detail, remedy))
    return found
