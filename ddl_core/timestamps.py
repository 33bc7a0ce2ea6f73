"""Timing of ranks that compute with torch: on a GPU, timestamps are CUDA events."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import record_function

from ddl_core.strategies.base import Strategy
from ddl_core.timing import MARK, Clock, EnergyMeter, HostTimestamps, Phase, Seconds


def make_clock(
    strategy: Strategy, annotate: bool = False, meter: EnergyMeter | None = None
) -> Clock:
    """Return a clock of the ranks of `strategy`; `annotate` shows its marks to a profiler."""
    moments = timestamps(strategy.device)
    moments.annotate = annotate
    return Clock(strategy, moments, meter)


def timestamps(device: torch.device) -> "TorchTimestamps":
    """Return timestamps of the work of `device`."""
    return CudaEvents(device) if device.type == "cuda" else TorchTimestamps(device)


@contextmanager
def marking_backward(clock: Clock, strategy: Strategy, network: nn.Module) -> Iterator[None]:
    """Mark, inside, when the last gradient of each backward pass is there.

    It is that of the first parameter: gradients come in the opposite order of the forward pass.
    Not where backward waits for communication: no mark divides the two there, so the epoch has no
    breakdown.
    """
    if strategy.waits_in_backward:
        yield
        return
    first = next(one for one in network.parameters() if one.requires_grad)
    hook = first.register_post_accumulate_grad_hook(lambda _: clock.backward_done())
    try:
        yield
    finally:
        hook.remove()


class TorchTimestamps(HostTimestamps):
    """Timestamps on the CPU, which torch's profiler can see."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def show(self, phase: Phase) -> None:
        """Show the end of a phase to the profiler."""
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
