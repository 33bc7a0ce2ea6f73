"""The GPUs that NVIDIA's driver lists here, asked without torch."""

import os
import subprocess
from collections.abc import Collection
from dataclasses import dataclass

from ddl_core.errors import LaunchError

PATIENCE_S = 30
MIB = 2**20
# PyPI's build of the pinned version is for the newest CUDA.
INDEX = "make env TORCH_INDEX=https://download.pytorch.org/whl/cu126"


@dataclass(frozen=True)
class Listed:
    """What the driver tells: its version, and the names of the GPUs that a rank would see."""

    driver: str
    names: tuple[str, ...]


def listed() -> Listed | None:
    """Return the GPUs that ``nvidia-smi`` lists and ``CUDA_VISIBLE_DEVICES`` leaves us, if any."""
    told = ask("driver_version,uuid,name", "csv,noheader")
    rows = [line.split(", ", 2) for line in told if line.count(", ") > 1]
    names = tuple(rows[place][2] for place in _visible([uuid for _, uuid, _ in rows]))
    return Listed(rows[0][0], names) if names else None


def free_bytes() -> list[int | None]:
    """Return the free memory of each GPU that the driver shows.

    None: a GPU that shares the memory of the machine, or a part of one, has no number: "[N/A]".
    """
    return [_bytes(line) for line in ask("memory.free", "csv,noheader,nounits")]


def bytes_of(pids: Collection[int]) -> list[int] | None:
    """Return the memory that processes hold on each GPU that the driver shows.

    None where it names none of them: they hold nothing there, or it sees them by other numbers, as
    in some containers.
    """
    uuids = [line.strip() for line in ask("uuid", "csv,noheader")]
    told = ask("gpu_uuid,pid,used_memory", "csv,noheader,nounits", of="compute-apps")
    rows = [line.split(", ") for line in told if line.count(", ") == 2]
    found = [
        (uuids.index(uuid), amount)
        for uuid, pid, used in rows
        if uuid in uuids and pid in map(str, pids) and (amount := _bytes(used)) is not None
    ]
    if not found:
        return None
    return [sum(amount for place, amount in found if place == one) for one in range(len(uuids))]


def _bytes(mib: str) -> int | None:
    return int(mib) * MIB if mib.strip().isdecimal() else None


def ask(fields: str, form: str, of: str = "gpu") -> list[str]:
    """Return a line for each GPU from ``nvidia-smi``; none where it is not there, or fails.

    With `of` ``compute-apps``, a line for each process on each GPU.
    """
    command = ["nvidia-smi", f"--query-{of}={fields}", f"--format={form}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def count() -> int:
    """Return the number of GPUs that a rank would see, asked without torch."""
    found = listed()
    return len(found.names) if found else 0


def _visible(uuids: list[str]) -> list[int]:
    """Return which GPUs ``CUDA_VISIBLE_DEVICES`` leaves us: like CUDA, up to the first unknown one.

    SLURM writes "NoDevFiles" into it where no GPU was granted; a shell may have it from elsewhere.
    """
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for word in map(str.strip, asked.split(",")):
        known = [
            place
            for place, uuid in enumerate(uuids)
            # The parts of a GPU have names of their own, and a process sees one of them.
            if word == str(place) or (word and uuid.startswith(word)) or word.startswith("MIG-")
        ]
        if not known:
            break
        found.append(known[0])
    return found


def unseen(cuda: str | None) -> str | None:
    """Say why a torch of version `cuda` (None: CPU) that sees no GPU should; None without a GPU."""
    found = listed()
    if found is None:
        return None
    built = f"is built for CUDA {cuda}" if cuda else "is built for the CPU"
    return (
        f"torch sees no GPU, but nvidia-smi lists {len(found.names)} ({found.names[0]}); the "
        f"driver is {found.driver} and this torch {built}"
    )


def check(cuda: str | None) -> None:
    """Raise `LaunchError` if the driver lists a GPU, unseen by a torch of version `cuda`."""
    if why := unseen(cuda):
        raise LaunchError(why, remedy=f"{remedy(cuda)}; or choose device 'cpu'")


def remedy(cuda: str | None) -> str:
    """Return the way out of what `unseen` says, for a torch of the same version."""
    driver = "update the driver, or install" if cuda else "install"
    return (
        f"{driver} the same torch for a CUDA that the driver knows, from PyTorch's own index: "
        f"rm -r .venv; {INDEX}"
    )


def capability() -> tuple[int, int]:
    """Return the least compute capability of the GPUs here; (0, 0) if the driver does not tell."""
    told = [line.strip().partition(".") for line in ask("compute_cap", "csv,noheader")]
    return min(
        ((int(one), int(two)) for one, _, two in told if one.isdecimal() and two.isdecimal()),
        default=(0, 0),
    )
