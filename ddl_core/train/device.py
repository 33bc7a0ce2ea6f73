"""What torch knows of the device a rank computes on, and the settings a run asks of it."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ddl_core.records.profile import WINDOW
from ddl_core.spec.run import RunSpec
from ddl_core.train.protocols import Strategy


def configure(spec: RunSpec) -> None:
    """Set threads and arithmetic of this process.

    ``fp32`` means full single precision: torch would otherwise let cuDNN use TF32.
    """
    torch.set_num_threads(spec.cpu_threads)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = spec.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = spec.precision == "tf32"


def describe(device: torch.device) -> dict[str, Any]:
    """Return ``device``, and on a GPU its name, memory and the CUDA, cuDNN and NCCL versions."""
    if device.type != "cuda":
        return {"device": "cpu", "accelerator": None, "architecture": platform.machine()}
    properties = torch.cuda.get_device_properties(device)
    nccl = torch.cuda.nccl.version()
    return {
        "device": "cuda",
        "accelerator": properties.name,
        "accelerator_memory_bytes": properties.total_memory,
        "accelerators_visible": torch.cuda.device_count(),
        "architecture": platform.machine(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else str(nccl),
    }


def identity(device: torch.device) -> str | None:
    """Return the UUID of a GPU, which two ranks must not share; None on the CPU."""
    if device.type != "cuda":
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


def reset_peak_memory(device: torch.device) -> None:
    """Begin a new measurement of `peak_memory_bytes`."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_bytes(strategy: Strategy) -> int | None:
    """Return the most memory that tensors took on any rank's GPU; None on the CPU. A collective."""
    if strategy.device.type != "cuda":
        return None
    own = torch.cuda.max_memory_allocated(strategy.device)
    peak = torch.tensor(float(own), dtype=torch.float64, device=strategy.device)
    return int(strategy.all_reduce(peak, "max").item())


@contextmanager
def shown_to_nsys(device: torch.device, wanted: bool) -> Iterator[bool]:
    """Show what is inside to Nsight Systems, marks included; yield whether it is.

    It is if wanted and on a GPU.
    """
    shown = wanted and device.type == "cuda"
    if shown:
        with torch.autograd.profiler.emit_nvtx(), torch.cuda.nvtx.range(WINDOW):
            yield True
    else:
        yield False
