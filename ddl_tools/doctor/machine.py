"""Cores, memory, GPUs and folders of this machine, and the packages, each in a process of its own.

A package that hangs or crashes at import is then a finding instead of the end of the doctor.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from os.path import commonprefix
from pathlib import Path

from ddl_core import registry
from ddl_core.config import RunSpec
from ddl_core.data.formats import open_format
from ddl_core.errors import DDLError
from ddl_core.origin import IN_CLONE, INSTALL
from ddl_tools import gpus, import_errors, limits
from ddl_tools.commit import code
from ddl_tools.doctor.finding import Finding, State
from ddl_tools.emulation import nodes
from ddl_tools.launch import interpreters
from ddl_tools.launch.preflight import check_data, check_room
from ddl_tools.launch.slurm.site import brought_sites
from ddl_tools.processes import imports
from ddl_tools.records.paths import PROJECT, Tree
from ddl_tools.records.provenance import file_system, installed_version

PATIENCE_S = 120.0
ANSWER = "ddl doctor: "  # begins the line with the answer; packages print much at import
FLAW = "ddl doctor, remedy: "  # begins the line of a package that cannot do here what runs need
REMEDY = INSTALL
# Processes and threads: of launcher, kernel and server, and of each rank with its loaders.
PROCESSES, PROCESSES_PER_RANK = 100, 50

# Code that imports each package and says its version and build; and its remedy, if the package
# cannot do here what a run asks of it.
PROBES = {
    "torch": """
import torch
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
from ddl_tools import gpus as listed
built = listed.built_for(torch.version)
why = "" if gpus else listed.unseen(built)
say(torch.__version__, "for", built, *(gpus or [why or "sees no GPU"]))
if why:
    remedy(listed.remedy(built))
""",
    "torchvision": """
from ddl_core.models import torchvision
say(torchvision.__version__)
""",
    "horovod": """
import horovod, horovod.torch as hvd, torch
from ddl_core.errors import LaunchError
from ddl_core.system import check_host_name
built = {"Gloo": hvd.gloo_built(), "MPI": hvd.mpi_built(), "NCCL": hvd.nccl_built()}
lacks = torch.cuda.is_available() and not built["NCCL"]
missing = ["no NCCL: cannot train on this machine's GPUs"] if lacks else []
say(horovod.__version__, "with " + " ".join(name for name in built if built[name]), *missing)
if lacks:
    from ddl_core.origin import made
    remedy(made("horovod HOROVOD_GPU_OPERATIONS=NCCL") + " (docs/how-to/install-horovod.md)")
try:
    check_host_name()
except LaunchError as error:
    remedy(str(error))
""",
    "deepspeed": """
import deepspeed
from deepspeed.accelerator import get_accelerator
say(deepspeed.__version__, "accelerator " + get_accelerator().device_name())
""",
}

OPTIONAL = "optional, not installed"
"""What a finding says of a package that is not installed, and that nothing needs."""

# Asked for their version only: what they need is tested by using them.
INSTALLED = ("papermill", "jupyterlab", "ipyparallel")
NEEDED_BY_ALL = ("torch", "torchvision", "papermill")


def resources(runs: list[RunSpec]) -> list[Finding]:
    """Return what this machine has, against what `runs` need of it."""
    cores, ranks = limits.cores(), max(run.world_size for run in runs)
    total, free = limits.memory_bytes() / 1e9, limits.free_memory_bytes() / 1e9
    state: State = "ok" if cores >= ranks else "bad"
    remedy = "another machine, or fewer gpus_per_node in a copy of studies/laptop.yaml"
    return [
        Finding("cores", state, f"{cores:g}, the laptop study uses {ranks}", remedy),
        Finding("memory", "ok", f"{total:.3g} GB, {free:.3g} GB free"),
        *_processes(ranks),
        Finding("gpus", "ok", _gpus()),
    ]


def _gpus() -> str:
    """Return the number of GPUs and what they are called."""
    if (found := gpus.listed()) is None:
        return "none, runs use the CPU"
    return f"{len(found.names)} x {found.names[0]}"


def _processes(ranks: int) -> list[Finding]:
    """Report a limit of processes that is too low for so many ranks."""
    most, needed = limits.processes(), PROCESSES + ranks * PROCESSES_PER_RANK
    if most is None or most >= needed:
        return []
    remedy = "raise it (`ulimit -u`, or pids.max of the container or job)"
    return [Finding("processes", "warn", f"at most {most}, {needed} may be needed", remedy)]


def emulation() -> Finding:
    """Say whether a cluster can be emulated here."""
    try:
        nodes.check_support()
    except DDLError as error:
        return Finding("emulation", "warn", error.detail, error.remedy)
    return Finding("emulation", "ok", "nodes and shaped links can be made: emulated runs")


def imported() -> Finding:
    """Say whether modules come from outside this environment."""
    if outside := import_errors.from_outside():
        return Finding(import_errors.SUBJECT, "warn", *import_errors.why_from_outside(outside))
    return Finding(import_errors.SUBJECT, "ok", f"from {sys.prefix}")


def commit() -> Finding:
    """Say which commit of the code records will name."""
    found = code()
    name, missing = found["git_commit"], found["git_missing"]
    if missing:
        detail = f"{name}, from DDL_COMMIT: {missing}" if name else f"unknown: {missing}"
        remedy = "clone the project with git, or name the commit in DDL_COMMIT"
        return Finding("commit", "ok" if name else "warn", detail, remedy)
    changed = ", with uncommitted changes" if found["git_dirty"] else ""
    return Finding("commit", "ok", f"{name}{changed}")


def results(tree: Tree) -> Finding:
    """Say whether records can be written."""

    def look() -> str:
        check_room(tree.root)
        place = next(one for one in (tree.root, *tree.root.parents) if one.exists())
        free = shutil.disk_usage(place).free / 1e9
        return f"{tree.root}, {free:.0f} GB free on {file_system(place)}"

    return _checked("results", look, "ddl ... --results DIR, or DDL_RESULTS=DIR")


def data(folder: Path, data_format: str) -> Finding:
    """Say whether a data folder has all parts that its format asks for."""

    def look() -> str:
        check_data(folder, data_format)
        found = open_format(data_format, folder).describe()
        return f"{folder}, {found}, on {file_system(folder)}"

    remedy = "ddl data sample, or --data DIR; which files are damaged: ddl data verify DIR"
    return _checked("data", look, remedy)


def _checked(subject: str, look: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(subject, "ok", look())
    except DDLError as error:
        return Finding(subject, "bad", error.detail.splitlines()[0].split(";")[0], remedy)


def examine_packages(strategies: Collection[str]) -> list[Finding]:
    """Return a finding per package; without those of `strategies` nothing can run."""
    wanted = dict.fromkeys((*PROBES, *registry.packages("strategy")))
    needed = {*NEEDED_BY_ALL, *(p for s in strategies for p in registry.STRATEGIES[s].packages)}
    with ThreadPoolExecutor(max_workers=2) as pool:
        asked = list(pool.map(lambda name: ask(name, name in needed), wanted))
    plug_ins = (*registry.LEFT_OUT, *brought_sites()[1])
    return [
        Finding("python", "ok", platform.python_version()),
        *asked,
        *(installed(name, name in needed) for name in INSTALLED),
        *_of_names("loader"),
        *_of_names("model"),
        *(_of_library(name) for name in registry.FRAMEWORKS if name != "torch"),
        *(Finding("plug-in", "warn", *one.split("; ", 1)) for one in plug_ins),
    ]


def examine_outside() -> list[Finding]:
    """Return a finding per package that a job needs where its ranks bring their own."""
    python = Finding("python", "ok", platform.python_version())
    return [python, installed("papermill", required=True)]


def ask(name: str, required: bool = False, patience_s: float = PATIENCE_S) -> Finding:
    """Import a package in a process of its own and report what it says, as `PROBES` asks it."""
    if installed_version(name) is None or name not in PROBES:
        return installed(name, required)
    state: State = "bad" if required else "warn"
    head = (
        f"def say(*parts): print({ANSWER!r} + ', '.join(map(str, parts)))\n"
        f"def remedy(text): print({FLAW!r} + text)\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", head + PROBES[name]],
            capture_output=True,
            text=True,
            timeout=patience_s,
            env={**os.environ, **imports()},
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Finding(name, state, f"import took over {patience_s:.0f} s", REMEDY)
    said = [line for line in done.stdout.splitlines() if line.startswith((ANSWER, FLAW))]
    if done.returncode == 0 and said:
        detail, *flaw = (line.removeprefix(ANSWER).removeprefix(FLAW) for line in said[:2])
        return Finding(name, state, detail, flaw[0]) if flaw else Finding(name, "ok", detail)
    last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    again = f"rm -r .venv; {REMEDY}" if IN_CLONE else f"pip install --force-reinstall {name}"
    return Finding(name, state, f"broken: {last}", again)


def installed(name: str, required: bool) -> Finding:
    """Report the version of a package without importing it."""
    if version := installed_version(name):
        return Finding(name, "ok", version)
    needs = (one.install for one in registry.STRATEGIES.values() if name in one.packages)
    install = next(needs, REMEDY)
    if required:
        return Finding(name, "bad", "not installed", install)
    return Finding(name, "ok", f"{OPTIONAL}; to install it: {install}")


def _of_names(kind: str) -> list[Finding]:
    """Return a finding per set of packages of which the same loaders, or networks, need one."""
    users: dict[tuple[str, ...], list[str]] = {}
    for name, entry in registry.REGISTRIES[kind].items():
        if entry.packages:
            users.setdefault(entry.packages, []).append(name)
    return [_one_of(kind, names, packages) for packages, names in users.items()]


def _one_of(kind: str, names: list[str], packages: tuple[str, ...]) -> Finding:
    subject = commonprefix(names).rstrip("_") or packages[0]  # noqa: RUF071 (letters are meant)
    for package in packages:
        if version := installed_version(package):
            return Finding(subject, "ok", f"{version} ({package})")
    needed = f"not installed; needed by {kind} {', '.join(names)}: {' or '.join(packages)}"
    return Finding(subject, "warn", needed, registry.REGISTRIES[kind][names[0]].install)


def _of_library(library: str) -> Finding:
    """Report the environment of a library beside torch, and of what its strategies need there."""
    strategies = [name for name, one in registry.STRATEGIES.items() if library in one.frameworks]
    packages = {library: registry.FRAMEWORKS[library]}
    packages |= {name: registry.STRATEGIES[name] for name in strategies}
    versions = []
    if not interpreters.is_there(library):
        install = registry.FRAMEWORKS[library].install
        return Finding(library, "ok", f"{OPTIONAL}; to install it: {install}")
    try:
        for strategy in strategies:
            interpreters.require(library, strategy)
        for one in packages.values():
            for name in one.packages + one.also:
                if version := interpreters.version(library, name):
                    versions.append(f"{name} {version}")
    except DDLError as error:
        detail, _, remedy = str(error).partition("; ")
        return Finding(library, "warn", detail, remedy)
    return Finding(library, "ok", f"{', '.join(versions)} for {interpreters.python_of(library)}")
