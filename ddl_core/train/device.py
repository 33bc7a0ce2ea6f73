"""What torch knows of the device a rank computes on, and the settings a run asks of it."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ddl_core.records.profile import WINDOW
from ddl_core.spec.run import RunSpec


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


def threads() -> dict[str, int]:
    """Return the threads that torch computes with, in this process, and those between operators."""
    return {"compute": torch.get_num_threads(), "interop": torch.get_num_interop_threads()}


def settings(spec: RunSpec, device: torch.device) -> dict[str, Any]:
    """Return the switches of torch that are in effect in this process, by their names."""
    return {
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "pin_memory": spec.pin_memory and device.type == "cuda",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "mkl": torch.backends.mkl.is_available(),
    }


def identity(device: torch.device) -> str | None:
    """Return the UUID of a GPU, which two ranks must not share; None on the CPU."""
    if device.type != "cuda":
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


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
