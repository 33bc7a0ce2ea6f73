"""Code, packages and machine of a run, as far as they are known without torch."""

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from ddl_core import registry
from ddl_tools.records.paths import PROJECT, REQUIREMENTS

PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "nvidia-ml-py",
    "numpy",
    "pillow",
    "papermill",
    "pydantic",
    "jax",
    "jaxlib",
    "optax",
)

SCHEDULER_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_CLUSTER_NAME",
)


def provenance(library: str = "torch") -> dict[str, Any]:
    """Return the code and the packages: ``git_commit``, ``git_dirty``, ``python``, ``packages``.

    Without a checkout, the commit is ``DDL_COMMIT``. ``not_pinned`` are the packages of another
    version than ``requirements/`` ask for in the environment of `library`.
    """
    names = [*PACKAGES, *(name for kind in registry.REGISTRIES for name in registry.packages(kind))]
    packages = {name: version for name in names if (version := _version(name))}
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "git_commit": _git("rev-parse", "HEAD") or os.environ.get("DDL_COMMIT"),
        "git_dirty": None if status is None else bool(status),
        "python": platform.python_version(),
        "packages": packages,
        "not_pinned": _not_pinned(packages, library),
        "scheduler": {name: os.environ[name] for name in SCHEDULER_VARIABLES if name in os.environ},
    }


def _not_pinned(packages: dict[str, str], library: str) -> list[str]:
    """Return e.g. ``["torch 2.11.0+cu130 (2.13.0)"]``; what no file pins is left out."""
    files = "*.txt" if library == "torch" else f"libraries/{library}.txt"
    texts = [path.read_text(encoding="utf-8") for path in sorted(REQUIREMENTS.glob(files))]
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;+]+)", "\n".join(texts), flags=re.MULTILINE))
    return [
        f"{name} {version} ({pins[name]})"
        for name, version in packages.items()
        if name in pins and version.split("+")[0] != pins[name]
    ]


def host() -> dict[str, Any]:
    """Return the machine without its name: CPU model, cores, memory in bytes, load when asked."""
    return {
        "os": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_model(),
        "cpu_cores": available_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average_1min": os.getloadavg()[0],
    }


def available_cores() -> int:
    """Return the number of cores this process may use (not those of the whole node)."""
    return len(os.sched_getaffinity(0))


def file_system(path: Path) -> str:
    """Return the type of the file system that a path is on, or would be; ``?`` if unknown."""
    place = path.resolve()
    mounts = {Path(one.mountpoint): one.fstype for one in psutil.disk_partitions(all=True)}
    return next((mounts[one] for one in (place, *place.parents) if one in mounts), "?")


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    found = re.search(r"^model name\s*: *(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Return git's answer, or None outside a repository or without git."""
    try:
        command = ["git", "-C", str(PROJECT), *arguments]
        return subprocess.check_output(
            command, stderr=subprocess.DEVNULL, text=True, timeout=20
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return None
