"""A GPU that is none: tensors stay in the host's memory, and time is told.

What the code does with streams and events can then be seen without one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch


class FakeDevice(str):
    """A device that calls itself a GPU, and torch takes for the CPU."""

    type = "cuda"
    __slots__ = ()


GPU = FakeDevice("cpu")


class Streams:
    """Stands in for torch.cuda's streams; `log` says in order what was asked of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.current = self.stream("computing")
        patch.setattr(torch.cuda, "Stream", lambda device: self.stream("copying"))
        patch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)
        patch.setattr(torch.cuda, "stream", self._entered)

    def stream(self, name: str) -> SimpleNamespace:
        def wait_stream(other: SimpleNamespace) -> None:
            self.log.append(f"{name} waits for {other.name}")

        return SimpleNamespace(name=name, device=GPU, wait_stream=wait_stream)

    @contextmanager
    def _entered(self, stream: SimpleNamespace) -> Iterator[None]:
        outer, self.current = self.current, stream
        yield
        self.current = outer


class Timeline:
    """Host and device with a clock each; the host only launches, and need not wait."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.host = self._free = 0.0
        timeline = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = max(timeline.host, timeline._free)  # when all before it is done

            def elapsed_time(self, later: "Event") -> float:
                return 1000 * (later.at - self.at)

        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "synchronize", lambda device=None: self.wait())
        now = SimpleNamespace(perf_counter=lambda: self.host)
        patch.setattr("ddl_core.timing.time", now)

    def launch(self, seconds: float) -> None:
        """Have the device compute so long, once it is free."""
        self._free = max(self.host, self._free) + seconds

    def wait(self) -> None:
        self.host = max(self.host, self._free)
