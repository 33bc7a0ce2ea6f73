"""The device of a rank: torch's switches, timestamps, torch.compile."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.profiler import record_function

from ddl_core.blocks import required_blocks
from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_core.timing import MARK, Clock, EnergyMeter, HostTimestamps, Phase, Seconds

if TYPE_CHECKING:
    from ddl_core.strategies.base import Strategy

VARIANTS = 8
"""Compiled graphs of a block at most: in training, in evaluation, for smaller batches."""


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


def compile_network(network: nn.Module, by_block: bool = False) -> None:
    """Have `network` compiled in place when it is first called; a failure ends the run.

    With `by_block`, only its blocks are, so that what goes on between them stays as it is.
    """
    import torch._dynamo  # takes a second, which runs without it need not spend

    found = required_blocks(network, "compile") if by_block else [network]
    config = torch._dynamo.config
    config.suppress_errors = False
    config.fail_on_recompile_limit_hit = True
    # Blocks of one kind share code, and so a limit; those of one shape share what is compiled.
    config.recompile_limit = max(config.recompile_limit, VARIANTS * len(found))
    # Shapes differ between blocks, which says nothing about the next call of each.
    dynamic = False if by_block else None
    for one in found:
        # Not `one.compile()`: it compiles nothing of a network of torch's own layers alone.
        one.forward = torch.compile(one.forward, dynamic=dynamic)  # type: ignore[method-assign]


def check_compiled() -> None:
    """Check, after a first epoch, that torch has compiled something: it may decline silently."""
    from torch._dynamo.utils import counters

    if not counters["stats"]["unique_graphs"]:
        raise LaunchError(
            "compile = true, but torch.compile has compiled nothing",
            remedy="unset TORCHDYNAMO_DISABLE and TORCH_COMPILE_DISABLE, or set compile to false",
        )
