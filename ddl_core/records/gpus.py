"""The GPUs that NVIDIA's driver lists here, asked without torch."""

import os
import shutil
import subprocess
from dataclasses import dataclass

QUERY = ("--query-gpu=driver_version,name", "--format=csv,noheader")
PATIENCE_S = 30
# pip prefers the pinned version's build of that index to PyPI's, which is for the newest CUDA.
INDEX = "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu126 make env"


@dataclass(frozen=True)
class Listed:
    """What the driver tells: its version, and the names of the GPUs."""

    driver: str
    names: tuple[str, ...]


def listed() -> Listed | None:
    """Return what ``nvidia-smi`` lists; None if there is none, or if they are hidden from us."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "NoDevFiles")
    program = shutil.which("nvidia-smi")
    if hidden or program is None:
        return None
    try:
        told = subprocess.run(
            [program, *QUERY], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(", ", 1) for line in told.splitlines() if ", " in line]
    return Listed(rows[0][0], tuple(name for _, name in rows)) if rows else None


def unseen(cuda: str | None) -> str | None:
    """Say why a torch that sees no GPU should; None if the driver lists none either.

    Parameters
    ----------
    cuda
        ``torch.version.cuda``; None of a build for the CPU.
    """
    found = listed()
    if found is None:
        return None
    built = f"is built for CUDA {cuda}" if cuda else "is built for the CPU"
    return (
        f"torch sees no GPU, but nvidia-smi lists {len(found.names)} ({found.names[0]}); the "
        f"driver is {found.driver} and this torch {built}"
    )


def remedy(cuda: str | None) -> str:
    """Return the way out of what `unseen` says, for a torch of the same version."""
    driver = "update the driver, or install" if cuda else "install"
    return (
        f"{driver} the same torch for a CUDA that the driver knows, from PyTorch's own index: "
        f"rm -r .venv; {INDEX}"
    )
