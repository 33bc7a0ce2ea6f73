"""The device of a rank: torch's switches, timestamps, torch.compile."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.profiler import record_function

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_core.timing import MARK, Clock, EnergyMeter, HostTimestamps, Phase, Seconds

if TYPE_CHECKING:
    from ddl_core.strategies.base import Strategy


def configure(spec: RunSpec) -> None:
    """Set threads and arithmetic of this process.

    ``fp32`` means full single precision. ``torch`` means torch's own default on a GPU: cuDNN may
    use TF32 in convolutions, and matrix products may not.
    """
    torch.set_num_threads(spec.cpu_threads)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = spec.precision in ("tf32", "torch")
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


def compile_network(network: nn.Module) -> None:
    """Have `network` compiled in place when it is first called; a failure ends the run."""
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
