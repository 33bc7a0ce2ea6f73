"""How much memory is left, and whether one more arm finds room beside those that are alive."""

import shutil
import subprocess

import psutil

from ddl_core.spec.run import RunSpec

MIB = 1024 * 1024
GIB = 1024 * MIB
MARGIN = 1.25  # an arm may need so many times what the largest one took so far
SPARE_BYTES = GIB  # for everything else on the machine


class Room:
    """Learns from arms that have started what the next one will need."""

    def __init__(self) -> None:
        self._free = free_bytes()
        self._per_rank = dict.fromkeys(self._free, 0)

    def note(self, spec: RunSpec) -> None:
        """Note what the arm took that has just started."""
        now = free_bytes()
        for place, free in now.items():
            taken = (self._free.get(place, free) - free) // spec.world_size
            self._per_rank[place] = max(self._per_rank.get(place, 0), taken)
        self._free = now

    def fits(self, spec: RunSpec) -> bool:
        """Say whether one more arm finds room."""
        return all(
            self._per_rank[place] * spec.world_size * MARGIN + SPARE_BYTES <= free
            for place, free in self._free.items()
            if self._per_rank[place]
        )

    def __str__(self) -> str:
        return "; ".join(
            f"{place}: {self._free[place] / GIB:.1f} GiB free, {needed / GIB:.1f} GiB for each rank"
            for place, needed in self._per_rank.items()
            if needed
        )


def free_bytes() -> dict[str, int]:
    """Return what could still be taken, by place: this machine, and each GPU that its driver shows.

    What a container may take less than its machine has is not known here.
    """
    found = {"this machine": psutil.virtual_memory().available}
    program = shutil.which("nvidia-smi")
    if program is None:
        return found
    query = [program, "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return found
    # A GPU that shares the memory of the machine, or a part of one, has no number: "[N/A]".
    lines = enumerate(line.strip() for line in answer.stdout.splitlines())
    return found | {f"GPU {number}": int(line) * MIB for number, line in lines if line.isdecimal()}
