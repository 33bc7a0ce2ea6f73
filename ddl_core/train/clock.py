"""The clock of ranks that compute with torch: on a GPU its marks are events."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import record_function

from ddl_core.rank import clock
from ddl_core.rank.clock import Seconds
from ddl_core.rank.energy.meter import Meter
from ddl_core.records.profile import MARK, Phase
from ddl_core.train.protocols import Strategy
from ddl_core.train.strategies.group import Reducing


class Clock(clock.Clock):
    """Times one window; see `rank.clock.Clock`.

    Parameters
    ----------
    strategy : Strategy
        The ranks that share the window.
    annotate : bool
        Also show the marks to a profiler.
    meter : Meter or None
        Measures energy.
    """

    def __init__(
        self, strategy: Strategy, annotate: bool = False, meter: Meter | None = None
    ) -> None:
        self._waits_in_backward = strategy.waits_in_backward
        marks = Events if strategy.device.type == "cuda" else Moments
        super().__init__(Reducing(strategy), marks(strategy.device, annotate), meter)

    @contextmanager
    def watching(self, network: nn.Module) -> Iterator[None]:
        """Mark, inside, when the last gradient of each backward pass is there.

        It is that of the first parameter: gradients come in the opposite order of the forward pass.
        Not where backward waits for communication: no mark divides the two there, so the window
        has no breakdown.
        """
        if self._waits_in_backward:
            yield
            return
        first = next(one for one in network.parameters() if one.requires_grad)
        hook = first.register_post_accumulate_grad_hook(lambda _: self.gradients_are_there())
        try:
            yield
        finally:
            hook.remove()


class Moments:
    """Marks on the CPU, where work is done when its call returns."""

    tell_steps = True

    def __init__(self, device: torch.device, annotate: bool) -> None:
        self._device, self._annotate = device, annotate

    def now(self) -> Any:
        """Return seconds."""
        return time.perf_counter()

    def seconds(self, moments: list[Any]) -> Seconds:
        """Return the seconds between neighbours."""
        return np.diff(moments)

    def wait(self) -> None:
        """Do nothing: the CPU is never ahead of itself."""

    def show(self, phase: Phase) -> None:
        """Show a mark to the profiler."""
        if self._annotate:
            with record_function(MARK + phase):
                pass


class Events(Moments):
    """Marks on a GPU: events, which are read after the window."""

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
