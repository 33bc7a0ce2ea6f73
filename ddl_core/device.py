"""The device of a rank: torch's switches, facts, timestamps, peak memory, torch.compile."""

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch
from torch import nn
from torch.profiler import record_function

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_core.system import compiled
from ddl_core.timing import MARK, WINDOW, Clock, EnergyMeter, HostTimestamps, Phase, Seconds

if TYPE_CHECKING:
    from ddl_core.strategies.base import Strategy

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5)


def configure(spec: RunSpec) -> None:
    """Set threads and arithmetic of this process.

    ``fp32`` means full single precision: torch would otherwise let cuDNN use TF32.
    """
    torch.set_num_threads(spec.cpu_threads)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = spec.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = spec.precision == "tf32"


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """Return this rank's device for ``"auto"``, ``"cpu"`` or ``"cuda"``.

    `LaunchError` if CUDA is asked for and not there.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if wanted == "auto":
            return torch.device("cpu")
        raise LaunchError(
            "device = 'cuda', but torch sees no CUDA device", remedy="use device 'cpu' or 'auto'"
        )
    # Some sites show every rank all GPUs of the node, some only its own.
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


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
    """Return the threads that torch computes with within and between operators."""
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
    """Show the block to Nsight Systems if wanted and on a GPU; yield whether it is shown."""
    if not (wanted and device.type == "cuda"):
        yield False
        return
    with torch.autograd.profiler.emit_nvtx(), torch.cuda.nvtx.range(WINDOW):
        yield True


def make_clock(
    strategy: "Strategy", annotate: bool = False, meter: EnergyMeter | None = None
) -> Clock:
    """Return a clock of the ranks of `strategy`; `annotate` shows its marks to a profiler."""
    moments = timestamps(strategy.device)
    moments.annotate = annotate
    return Clock(strategy, moments, meter)


def timestamps(device: torch.device) -> "TorchTimestamps":
    """Return timestamps of the work of `device`."""
    return CudaEvents(device) if device.type == "cuda" else TorchTimestamps(device)


class TorchTimestamps(HostTimestamps):
    """Timestamps on the CPU, which torch's profiler can see."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def show(self, phase: Phase) -> None:
        """Show the end of a phase to a profiler."""
        if self.annotate:
            with record_function(MARK + phase):
                pass


class CudaEvents(TorchTimestamps):
    """Timestamps on a GPU: events, which are read after the window."""

    def now(self) -> Any:
        """Return an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, moments: list[Any]) -> Seconds:
        """Return the seconds between neighbours."""
        ms = [before.elapsed_time(after) for before, after in pairwise(moments)]
        return np.array(ms) / 1000

    def wait(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize(self._device)


class PeakMemory:
    """The most memory that a rank uses, above what it had when this was made.

    On a GPU it is that of torch's tensors; on the CPU resident memory, without mapped files.
    """

    def __init__(self, strategy: "Strategy") -> None:
        self._strategy = strategy
        memory = psutil.Process().memory_info()
        self._before = memory.rss - getattr(memory, "shared", 0)
        self._resets = False

    def begin(self) -> None:
        """Begin a measurement."""
        self._resets = False
        if self._strategy.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._strategy.device)
            return
        with suppress(OSError):  # not Linux, or one that does not allow it
            CLEAR.write_text(RESET_PEAK)
            self._resets = True

    def peak(self) -> int | None:
        """Return bytes, the most of any rank since `begin`; None if not known. A collective."""
        own = torch.tensor(float(self._own()), dtype=torch.float64, device=self._strategy.device)
        return int(self._strategy.all_reduce(own, "max").item()) or None

    def _own(self) -> int:
        if self._strategy.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._strategy.device)
        if not self._resets:
            return 0
        (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
        return max(0, 1024 * int(kilobytes) - psutil.Process().memory_info().shared - self._before)


def compile_network(network: nn.Module) -> None:
    """Have `network` compiled in place when it is first called; a failure ends the run."""
    os.environ.update(compiled())
    import torch._dynamo  # takes a second, which runs without it need not spend

    torch._dynamo.config.suppress_errors = False
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    network.compile()


def check_compiled() -> None:
    """Check, after a first epoch, that torch has compiled something: it may decline silently."""
    from torch._dynamo.utils import counters

    if not counters["stats"]["unique_graphs"]:
        raise LaunchError(
            "compile = true, but torch.compile has compiled nothing",
            remedy="unset TORCHDYNAMO_DISABLE and TORCH_COMPILE_DISABLE, or set compile to false",
        )
