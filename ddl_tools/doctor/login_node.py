"""Checks of a site on its login node: scheduler, modules, caches, and what jobs must also see."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import psutil

from ddl_core import system
from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.doctor.finding import Finding
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.slurm.site import Site, expand
from ddl_tools.processes import Passing, users_environment
from ddl_tools.records.paths import PROJECT, Tree
from ddl_tools.records.provenance import file_system

SHELL_PATIENCE_S = 60.0
_LATER = "call ddl doctor without --dry-run"
LATE = 124  # exit code of `timeout`
# Of these each machine has its own.
LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "devtmpfs"}
    | {"overlay", "aufs", "squashfs"}
)

Where = Literal["job", "login node", "machine"]


def where(dry_run: bool = False) -> tuple[Where, Finding]:
    """Return whether this is a SLURM job, a login node or a machine by itself; and `sinfo`.

    `sinfo` is called once: it takes its whole time limit where the controller is dead. A dry run
    does not call it, and so knows no login node.
    """
    if dry_run and shutil.which("sinfo"):
        found = Finding("scheduler", "unknown", "sinfo: not called in a dry run", _LATER)
    else:
        found = _scheduler()
    if "SLURM_JOB_ID" in os.environ:
        return "job", found
    return "login node" if found.state == "ok" else "machine", found


def _scheduler() -> Finding:
    try:
        return Finding("scheduler", "ok", f"sinfo says:\n{slurm_cli.call('sinfo').rstrip()}")
    except LaunchError as error:
        remedy = "run ddl doctor --site on a login node of the machine, where sbatch works"
        return Finding("scheduler", "bad", str(error).splitlines()[0], remedy)


def examine(site: Site, spec: RunSpec, tree: Tree, dry_run: bool = False) -> list[Finding]:
    """Return the findings about a site that need no job.

    A dry run loads no modules and makes no folder.
    """
    places = {"environment": Path(sys.prefix), "project": PROJECT, "results": tree.root}
    shared = [_shared(f"{name} shared", place, spec) for name, place in places.items()]
    return [_modules(site, dry_run), _caches(site, dry_run), *_image(site, spec), *shared]


def of_site(found: Finding, site: Site) -> Finding:
    """Return the finding on a package, a warning if Horovod lacks what the site's jobs need."""
    needed = {"NCCL": site.gpus_per_node > 0, "MPI": site.horovod_controller == "mpi"}
    lacks = [name for name, needs in needed.items() if needs and name not in found.detail]
    if found.subject != "horovod" or found.state != "ok" or not lacks:
        return found
    return Finding(
        found.subject,
        "warn",
        f"{found.detail}; without {' and '.join(lacks)}, which this site's jobs need",
        "build it again: docs/how-to/install-horovod.md",
    )


def verdict(script: str, dry_run: bool = False) -> Finding:
    """Ask `sbatch` itself whether it would take a job; not in a dry run."""
    variables = "".join(f"; {note}" for note in slurm_cli.notes(script))
    if dry_run:
        return Finding("sbatch", "unknown", f"not called in a dry run{variables}", _LATER)
    with Passing() as folder:
        path = Path(folder) / "job.sh"
        path.write_text(script, encoding="utf-8")
        try:
            slurm_cli.try_script(path, script)
        except LaunchError as error:
            reason = str(error).replace(str(path), "the job").splitlines()[0]
            remedy = "--account, --partition, --time, --ranks, --nodes; the site's file"
            return Finding("sbatch", "bad", reason, remedy)
    return Finding("sbatch", "ok", f"would take the job{variables}")


def _modules(site: Site, dry_run: bool) -> Finding:
    """Load the site's modules in a shell of their own, as its jobs do."""
    names = " ".join(site.modules)
    if not names:
        return Finding("modules", "ok", "none needed")
    if dry_run:
        return Finding("modules", "unknown", f"{names}: not loaded in a dry run", _LATER)
    done = _shell(f"module purge; module load {names}")
    # Older module systems report success whatever happens.
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    wrong = [line for line in said if "error" in line.lower() or "unable" in line.lower()]
    if done.returncode == 0 and not wrong:
        return Finding("modules", "ok", names)
    reason = (wrong or said or [f"exit code {done.returncode}"])[0]
    remedy = "modules in the site's file; what there is: module avail (or module spider NAME)"
    return Finding("modules", "bad", f"{names}: {reason}", remedy)


def _caches(site: Site, dry_run: bool) -> Finding:
    """Say whether the site's folder for caches can be written here, and on what it is."""
    variables = users_environment()
    variables["USER"] = variables.get("USER") or psutil.Process().username()
    try:
        folder = Path(expand(site.caches, variables))
        if dry_run:
            return Finding("caches", "unknown", f"{folder}: not made in a dry run", _LATER)
        system.require(folder)
    except KeyError as error:
        reason = f"{site.caches}: the variable {error.args[0]} is not set"
    except LaunchError as error:
        reason = str(error)
    else:
        if os.access(folder, os.W_OK):
            return Finding("caches", "ok", f"{folder} on {file_system(folder)}")
        reason = f"{folder}: may not be written"
    remedy = "caches in the site's file: a folder that jobs may write, e.g. on the scratch disk"
    return Finding("caches", "bad", reason, remedy)


def _image(site: Site, spec: RunSpec) -> list[Finding]:
    """Say whether the image of a site's container is there; the ranks of the probe start it."""
    if site.container is None:
        return []
    remedy = "image of the container in the site's file: the path that nodes see"
    try:
        name = expand(site.container.image, users_environment())
    except KeyError as error:
        reason = f"{site.container.image}: the variable {error.args[0]} is not set"
        return [Finding("image", "bad", reason, remedy)]
    place = Path(name)
    if not place.is_absolute():
        return [Finding("image", "unknown", f"{name} is no path: jobs look it up", remedy)]
    if not place.exists():
        return [Finding("image", "bad", f"{name} does not exist here", remedy)]
    return [_shared("image", place, spec)]


def _shell(line: str) -> "subprocess.CompletedProcess[str]":
    """Run a line in a login shell; `timeout` ends it with all that it started."""
    limited = ["timeout", "--kill-after=5", f"{SHELL_PATIENCE_S}", "bash", "-lc", line]
    done = subprocess.run(
        limited,
        env=users_environment(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode == LATE:
        done.stderr = f"over {SHELL_PATIENCE_S:.0f} s"
    return done


def _shared(subject: str, place: Path, spec: RunSpec) -> Finding:
    """Say whether what every node must see lies on a file system of this machine alone."""
    kind = file_system(place)
    detail = f"{place} on {kind}"
    if kind not in LOCAL or spec.nodes == 1:
        return Finding(subject, "ok", detail)
    remedy = "if nodes do not see it, the probe's job fails: put it on a shared file system"
    detail += ", a file system that machines do not share as a rule"
    return Finding(subject, "warn", detail, remedy)
