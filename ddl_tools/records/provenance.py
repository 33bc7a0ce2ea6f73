"""Code, packages and machine of a run, as far as they are known without torch."""

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from ddl_core import registry
from ddl_core.origin import IN_CLONE
from ddl_tools import limits
from ddl_tools.commit import code
from ddl_tools.import_errors import from_outside
from ddl_tools.records.paths import REQUIREMENTS

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
    *(() if IN_CLONE else ("ddl-core",)),  # of a clone, the commit says all
)

# As /proc/cpuinfo calls them, and what they are called here.
CPU_DETAILS = {"cpu family": "family", "model": "model", "stepping": "stepping"}
CONTAINER = "DDL_INSIDE"  # runtime and image that a rank runs in, from what starts it
SCHEDULER_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_CLUSTER_NAME",
)


def provenance(library: str = "torch") -> dict[str, Any]:
    """Return `code` and the packages: ``python``, ``packages``, ``not_pinned``, ``from_outside``.

    ``container`` names the runtime and the image, where the ranks run in one.

    ``not_pinned`` are packages of another version than ``requirements/`` ask for in the environment
    of `library`, ``from_outside`` modules that ``PYTHONPATH`` puts before those of the environment.
    """
    names = [*PACKAGES, *(name for kind in registry.REGISTRIES for name in registry.packages(kind))]
    packages = {name: version for name in names if (version := installed_version(name))}
    return {
        **code(),
        "python": platform.python_version(),
        "packages": packages,
        "not_pinned": _not_pinned(packages, library),
        "from_outside": sorted(from_outside()),
        **({"container": os.environ[CONTAINER]} if CONTAINER in os.environ else {}),
        "scheduler": {name: os.environ[name] for name in SCHEDULER_VARIABLES if name in os.environ},
    }


def began_with(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the versions of earlier starts of a run that are not those of `now`, in words."""
    first, last = (
        {
            "commit": (one.get("git_commit") or "unknown")[:8] + "+" * bool(one.get("git_dirty")),
            "Python": one.get("python"),
            **one.get("packages", {}),
        }
        for one in (before, now)
    )
    others = [f"{name} {old}" for name, old in first.items() if old != last.get(name)]
    return list(dict.fromkeys([*before.get("began_with", ()), *others]))


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
    """Return the machine without its name: CPU, cores, speed, memory in bytes, load when asked."""
    return {
        "os": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_model(),
        "cpu_cores": limits.whole_cores(),
        "cpu_details": _cpu_details(),
        "speed_mb_per_s": limits.known_speed(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average_1min": os.getloadavg()[0],
    }


def file_system(path: Path) -> str:
    """Return the type of the file system that a path is on, or would be; ``?`` if unknown."""
    place = path.resolve()
    mounts = {Path(one.mountpoint): one.fstype for one in psutil.disk_partitions(all=True)}
    return next((mounts[one] for one in (place, *place.parents) if one in mounts), "?")


def _cpu_model() -> str:
    return _cpu_info().get("model name") or platform.machine()


def _cpu_details() -> str:
    """Return what tells processors of one name apart, e.g. ``"family 25, model 1, 2445 MHz"``."""
    info = _cpu_info()
    found = [f"{name} {info[key]}" for key, name in CPU_DETAILS.items() if info.get(key)]
    if clock := info.get("cpu MHz"):
        found.append(f"{float(clock):.0f} MHz")
    return ", ".join([*found, *(["virtual"] if "hypervisor" in info.get("flags", "") else [])])


def _cpu_info() -> dict[str, str]:
    """Return what the system says of its first core, by name."""
    info = Path("/proc/cpuinfo")
    first = info.read_text(encoding="utf-8").partition("\n\n")[0] if info.exists() else ""
    return dict(re.findall(r"^(.*?)\s*:[ \t]*(.*?)\s*$", first, re.MULTILINE))


def installed_version(package: str) -> str | None:
    """Return the version of a package here, without importing it; None if it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
