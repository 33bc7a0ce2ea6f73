"""Runs each rank under Nsight Systems, where the environment asks for it with ``DDL_NSYS=1``."""

import shutil
from pathlib import Path

from ddl_core.errors import NotInstalledError, SpecError
from ddl_core.spec.nsys import SWITCH, asked
from ddl_core.spec.run import RunSpec

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
    SpecError
        If it is asked for in a run that has another profiler.
    NotInstalledError
        If it is asked for and ``nsys`` is not there.
    """
    if not asked():
        return []
    if spec.profile_steps:
        raise SpecError(
            f"profile_steps = {spec.profile_steps}, but {SWITCH} is set: a GPU has one profiler at "
            f"a time; leave profile_steps at 0, or unset {SWITCH}"
        )
    if shutil.which("nsys") is None:
        raise NotInstalledError(
            f"{SWITCH} is set, but 'nsys' is not on PATH; load the module of Nsight Systems, or "
            f"unset {SWITCH}"
        )
    return prefix(logs)


def make_folder(logs: Path) -> None:
    """Make the folder of the reports, if they are asked for.

    Without it nsys writes into the node's own temporary folder, and says so in its log only.
    """
    if asked():
        folder(logs).mkdir(parents=True, exist_ok=True)
