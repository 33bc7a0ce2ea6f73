"""``ddl doctor``: what is here, what is missing, and the command that gets it.

Packages are asked in processes of their own, so that one that hangs or crashes at import is a
finding instead of the end of the doctor.
"""

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import click
import psutil

from ddl_core.cli.options import data_option, results_option, tree_of
from ddl_core.errors import DDLError
from ddl_core.paths import PROJECT, STUDIES, Tree
from ddl_core.provenance import available_cores
from ddl_core.spec import RunSpec, Study

PATIENCE_S = 120.0
ANSWER = "ddl doctor: "  # begins the one line that counts; packages print much at import
NOT_READY = 1


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    subject: str
    state: Literal["ok", "missing", "broken"]
    detail: str
    remedy: str = ""
    required: bool = False


# What each package has to tell, as an expression over the modules it imports.
PROBES = {
    "torch": """
import torch
cuda = torch.version.cuda
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
built = f"for CUDA {cuda}" if cuda else "for the CPU"
say(torch.__version__, built, *(gpus or ["sees no GPU"]))
""",
    "torchvision": """
from ddl_core.vision import torchvision
say(torchvision.__version__)
""",
    "horovod": """
import horovod, horovod.torch as hvd
built = {"Gloo": hvd.gloo_built(), "MPI": hvd.mpi_built(), "NCCL": hvd.nccl_built()}
say(horovod.__version__, "with " + " ".join(name for name in built if built[name]))
""",
    "deepspeed": """
import deepspeed
from deepspeed.accelerator import get_accelerator
say(deepspeed.__version__, "accelerator " + get_accelerator().device_name())
""",
}

# Asked for their version only: what they need is tested by using them.
INSTALLED = ("papermill", "jupyterlab", "ipyparallel")
DALI = ("nvidia-dali-cuda130", "nvidia-dali-cuda110")
NEEDED_BY_ALL = ("torch", "torchvision", "papermill")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@data_option
@results_option
def doctor(as_json: bool, data_dir: Path | None, root: Path | None) -> None:
    """Say what is installed, what is missing, and how to get it.

    Exit code 0 if this machine can run the whole laptop study.
    """
    findings = examine(tree_of(root), data_dir)
    lacking = [one.subject for one in findings if one.required and one.state != "ok"]
    if as_json:
        report = {"ready": not lacking, "findings": [asdict(one) for one in findings]}
        click.echo(json.dumps(report, indent=1))
    else:
        click.echo(text(findings))
        ready = f"no: {', '.join(lacking)}" if lacking else "yes"
        click.echo(f"\nThe laptop study can run here: {ready}")
    if lacking:
        sys.exit(NOT_READY)


def examine(tree: Tree, data_dir: Path | None = None) -> list[Finding]:
    """Return everything the doctor looks at, in the order of the report."""
    runs = Study.load(STUDIES / "laptop.yaml").expand()
    needed = {*NEEDED_BY_ALL, *(run.strategy for run in runs)}
    with ThreadPoolExecutor(max_workers=2) as pool:
        asked = list(pool.map(lambda name: probe(name, name in needed), PROBES))
    return [
        Finding("python", "ok", platform.python_version()),
        *asked,
        *(_installed(name, name in needed) for name in INSTALLED),
        _dali(),
        *_machine(runs),
        _results(tree),
        _data(data_dir or tree.dataset("sample")),
    ]


def text(findings: list[Finding]) -> str:
    """Return the report for people: aligned, one finding a line, its remedy below."""
    subject, state = (max(len(getattr(one, field)) for one in findings) for field in FIELDS)
    lines = []
    for one in findings:
        lines.append(f"{one.subject:<{subject}}  {one.state:<{state}}  {one.detail}".rstrip())
        if one.remedy and one.state != "ok":
            lines.append(f"{'':<{subject}}  {'':<{state}}  to get it: {one.remedy}")
    return "\n".join(lines)


FIELDS = ("subject", "state")


def probe(name: str, required: bool = False, patience_s: float = PATIENCE_S) -> Finding:
    """Import a package of `PROBES` in a process of its own and report what it says."""
    head = f"def say(*parts): print({ANSWER!r} + ', '.join(map(str, parts)))\n"
    remedy = "make env"
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", "", remedy, required)
    try:
        done = subprocess.run(
            [sys.executable, "-c", head + PROBES[name]],
            capture_output=True,
            text=True,
            timeout=patience_s,
            cwd=PROJECT,  # a checkout need not be installed
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Finding(name, "broken", f"import took over {patience_s:.0f} s", remedy, required)
    said = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    if done.returncode == 0 and said:
        return Finding(name, "ok", said[0].removeprefix(ANSWER), required=required)
    last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return Finding(name, "broken", last, f"rm -r .venv; {remedy}", required)


def _installed(name: str, required: bool) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name), required=required)
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", "", "make env", required)


def _dali() -> Finding:
    found = [one for name in DALI if (one := _installed(name, False)).state == "ok"]
    if found:
        return Finding("dali", "ok", f"{found[0].detail} ({found[0].subject})")
    return Finding("dali", "missing", "loaders dali_cpu and dali_gpu need it", "make env")


def _machine(runs: list[RunSpec]) -> list[Finding]:
    from ddl_core.launchers.preflight import gpu_count

    cores, gpus = available_cores(), gpu_count()
    ranks = max(run.world_size for run in runs)
    memory = psutil.virtual_memory()
    enough = cores >= ranks
    return [
        Finding(
            "cores",
            "ok" if enough else "missing",
            f"{cores}, the laptop study uses {ranks}",
            "another machine, or fewer gpus_per_node in a copy of studies/laptop.yaml",
            required=True,
        ),
        Finding(
            "memory", "ok", f"{memory.total / 1e9:.0f} GB, {memory.available / 1e9:.0f} GB free"
        ),
        Finding("gpus", "ok", str(gpus or "none, runs use the CPU")),
    ]


def _results(tree: Tree) -> Finding:
    from ddl_core.launchers.preflight import check_room

    def look() -> str:
        check_room(tree.root)
        place = next(one for one in (tree.root, *tree.root.parents) if one.exists())
        return f"{tree.root}, {shutil.disk_usage(place).free / 1e9:.0f} GB free"

    return _checked("results", look, "ddl ... --results DIR, or DDL_RESULTS=DIR")


def _data(folder: Path) -> Finding:
    from ddl_core.launchers.preflight import check_data

    def look() -> str:
        check_data(folder, "folder")
        classes = sum(1 for _ in (folder / "train").iterdir())
        return f"{folder}, {classes} classes"

    return _checked("data", look, "ddl data sample")


def _checked(subject: str, look: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(subject, "ok", look(), required=True)
    except DDLError as error:
        return Finding(subject, "missing", str(error).split(";")[0], remedy, required=True)
