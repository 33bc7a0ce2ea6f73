"""Runs each rank under Nsight Systems, where a run asks for it with ``nsys``."""

import shutil
from pathlib import Path

from ddl_core.config import RunSpec
from ddl_core.errors import NotInstalledError

# Writing the report goes on after the rank has ended; that is less than the default stall time-out.
EXIT_GRACE_S = 240.0

# Every flag, and what it is for; docs/profiling.md prints the same.
FLAGS = {
    "--trace=cuda,nvtx": "kernels and copies of the GPU, and the marks of the training loop",
    "--sample=none": "no sampling of the CPU: it costs time and needs rights that sites deny",
    "--cpuctxsw=none": "no switches of threads either, for the same reasons",
    "--wait=primary": "end with the rank, whatever its loader processes do",
    "--force-overwrite=true": "a second start of a run replaces what the first has left",
}


def folder(logs: Path) -> Path:
    """Return where the reports of an attempt are, one per rank."""
    return logs / "nsys"


def prefix(logs: Path) -> list[str]:
    """Return the words before a rank's command: a pure function.

    Each rank writes ``rank.RANK.nsys-rep``; its launcher sets ``RANK``.
    """
    place = str(folder(logs)).replace("%", "%%")
    return ["nsys", "profile", *FLAGS, f"--output={place}/rank.%q{{RANK}}"]


def words(spec: RunSpec, logs: Path) -> list[str]:
    """Return the words before a rank's command, none unless asked for.

    Raises
    ------
    NotInstalledError
        If it is asked for and ``nsys`` is not there.
    """
    if not spec.nsys:
        return []
    if shutil.which("nsys") is None:
        raise NotInstalledError(
            "nsys = true, but 'nsys' is not on PATH; load the module of Nsight Systems, or leave "
            "nsys out"
        )
    return prefix(logs)


def make_folder(spec: RunSpec, logs: Path) -> None:
    """Make the folder of the reports, if they are asked for.

    Without it nsys writes into the node's own temporary folder, and says so in its log only.
    """
    if spec.nsys:
        folder(logs).mkdir(parents=True, exist_ok=True)
