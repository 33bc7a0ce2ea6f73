"""The SLURM job that this process runs in, if its script was made for starting ranks."""

import os
import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Allocation:
    """Nodes that SLURM has granted, and the site's way to start tasks on them."""

    nodes: int
    srun: tuple[str, ...]
    launcher: str

    @classmethod
    def current(cls) -> "Allocation | None":
        """Return the allocation of this process.

        None outside a job, and in a job without ``DDL_SRUN``, which the job script sets: there a
        run uses this node alone, as on a laptop.
        """
        srun = os.environ.get("DDL_SRUN")
        if not srun or "SLURM_JOB_ID" not in os.environ:
            return None
        return cls(
            nodes=int(os.environ.get("SLURM_JOB_NUM_NODES", 1)),
            srun=tuple(shlex.split(srun)),
            launcher=os.environ.get("DDL_LAUNCHER", "srun"),
        )
