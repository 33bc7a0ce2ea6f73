"""The GPUs of this machine, asked without torch: of NVIDIA's driver, else of the kernel."""

import os
import platform
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ddl_core.errors import LaunchError
from ddl_core.origin import IN_CLONE

PATIENCE_S = 30
MIB = 2**20
_CPU = "choose device 'cpu'"
# PyPI's build of the pinned version is for the newest CUDA.
INDEX = "https://download.pytorch.org/whl/cu126"
PCI = Path("/sys/bus/pci/devices")
DISPLAYS_AND_ACCELERATORS = ("0x03", "0x12")  # the class of a PCI device
# A GPU in a processor has less, and trains no faster: such a machine computes on its cores.
OWN_MEMORY = 6e9

Vendor = Literal["NVIDIA", "AMD", "Intel"]
_VENDORS: dict[str, Vendor] = {"0x1002": "AMD", "0x8086": "Intel"}  # by their numbers on PCI
_VISIBLE: dict[Vendor, tuple[str, ...]] = {
    "NVIDIA": ("CUDA_VISIBLE_DEVICES",),
    "AMD": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "Intel": ("ZE_AFFINITY_MASK",),
}


@dataclass(frozen=True)
class Listed:
    """GPUs of one vendor: version of the driver, and the names of those that a rank would see."""

    driver: str
    names: tuple[str, ...]
    vendor: Vendor = "NVIDIA"


def listed() -> Listed | None:
    """Return the GPUs here that a variable such as ``CUDA_VISIBLE_DEVICES`` leaves us, if any.

    NVIDIA's are those that ``nvidia-smi`` lists. Others are those that the kernel shows with a
    memory of their own: a GPU that is part of a processor is none.
    """
    told = ask("driver_version,uuid,name", "csv,noheader")
    rows = [line.split(", ", 2) for line in told if line.count(", ") > 1]
    if not rows:
        return _of_others()
    names = tuple(rows[place][2] for place in _visible([uuid for _, uuid, _ in rows], "NVIDIA"))
    return Listed(rows[0][0], names) if names else None


def _of_others() -> Listed | None:
    """Return the GPUs of AMD, else those of Intel."""
    found: dict[Vendor, list[Path]] = {"AMD": [], "Intel": []}
    for device in sorted(PCI.iterdir()) if PCI.is_dir() else ():
        vendor = _VENDORS.get(_read(device / "vendor"))
        is_gpu = _read(device / "class").startswith(DISPLAYS_AND_ACCELERATORS)
        if vendor and is_gpu and _own_memory(device) >= OWN_MEMORY:
            found[vendor].append(device)
    for vendor, devices in found.items():
        ids = [f"GPU-{_read(device / 'unique_id')}" for device in devices]
        names = tuple(_name(vendor, devices[place]) for place in _visible(ids, vendor))
        if names:
            version = _read(devices[0] / "driver" / "module" / "version")
            return Listed(version or f"that of Linux {platform.release()}", names, vendor)
    return None


def _own_memory(device: Path) -> int:
    """Return the memory of a GPU in bytes: as AMD's driver tells it, else its largest window."""
    if (told := _read(device / "mem_info_vram_total")).isdecimal():
        return int(told)
    ends = [line.split()[:2] for line in _read(device / "resource").splitlines()]
    return max((int(last, 16) - int(first, 16) + 1 for first, last in ends), default=0)


def _name(vendor: Vendor, device: Path) -> str:
    return _read(device / "product_name") or f"{vendor} GPU {_read(device / 'device')}"


def _read(file: Path) -> str:
    """Return what the kernel says in a file; nothing where it is silent."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


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


def _visible(uuids: list[str], vendor: Vendor) -> list[int]:
    """Return which GPUs a vendor's variable leaves us: like CUDA, up to the first unknown one.

    SLURM writes "NoDevFiles" into it where no GPU was granted; a shell may have it from elsewhere.
    """
    set_here = (os.environ[name] for name in _VISIBLE[vendor] if name in os.environ)
    asked = next(set_here, None)
    if asked is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for word in map(str.strip, asked.split(",")):
        word = word.partition(".")[0] if vendor == "Intel" else word  # 0.1: a part of GPU 0
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


def built_for(version: Any) -> str:
    """Return what a torch is built for, by its ``torch.version``."""
    if version.cuda:
        return f"CUDA {version.cuda}"
    rocm = getattr(version, "hip", None)
    return f"ROCm {rocm}" if rocm else "the CPU"


def unseen(built: str) -> str | None:
    """Say why a torch that sees no GPU, built for so and so, should; None without a GPU."""
    found = listed()
    if found is None:
        return None
    if found.vendor == "Intel":
        return (
            f"this machine has GPUs of Intel ({len(found.names)} x {found.names[0]}), and runs can "
            "use those of NVIDIA and AMD only"
        )
    by = "nvidia-smi lists" if found.vendor == "NVIDIA" else "this machine has"
    return (
        f"torch sees no GPU, but {by} {len(found.names)} ({found.names[0]}); the "
        f"driver is {found.driver} and this torch is built for {built}"
    )


def check(built: str) -> None:
    """Raise `LaunchError` if there is a GPU, unseen by a torch that is built for so and so."""
    if why := unseen(built):
        raise LaunchError(why, remedy=remedy(built))


def _again(index: str) -> str:
    if IN_CLONE:
        return f"rm -r .venv; make env TORCH_INDEX={index}"
    return f"pip install --force-reinstall torch torchvision --index-url {index}"


def remedy(built: str) -> str:
    """Return the ways out of what `unseen` says, for the same torch."""
    found = listed()
    vendor = found.vendor if found else "NVIDIA"
    if vendor == "Intel":
        return _CPU
    same = "install the same torch for"
    if vendor == "AMD":
        ways = f"{same} ROCm, from the index that pytorch.org/get-started names: {_again('URL')}"
    else:
        driver = "update the driver, or " if built.startswith("CUDA") else ""
        ways = (
            f"{driver}{same} a CUDA that the driver knows, from PyTorch's own index: "
            f"{_again(INDEX)}"
        )
    return f"{ways}; or {_CPU}"


def capability() -> tuple[int, int] | None:
    """Return the least compute capability of NVIDIA's GPUs here; None where there are none."""
    told = [line.strip().partition(".") for line in ask("compute_cap", "csv,noheader")]
    return min(
        ((int(one), int(two)) for one, _, two in told if one.isdecimal() and two.isdecimal()),
        default=None,
    )
