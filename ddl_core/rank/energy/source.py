"""What the meter asks of a counter, and a thread for counters that cannot be left alone."""

import threading
from collections.abc import Callable
from typing import Protocol


class Unmeasured(Exception):
    """Energy cannot be read here; the text is the reason, for the record."""


class Source(Protocol):
    """One thing whose energy can be read. The constructor raises `Unmeasured` if it cannot."""

    method: str
    """What is read, as the record names it."""
    place: str
    """Identity of the thing: two ranks with the same one share it."""

    def start(self) -> None:
        """Begin to count; raises `Unmeasured`."""
        ...

    def stop(self) -> float:
        """Return joules since `start`; raises `Unmeasured`."""
        ...

    def close(self) -> None:
        """End a count that nobody will stop."""
        ...


class Every:
    """Calls `work` every `seconds` in a thread of its own, until `stop`."""

    def __init__(self, seconds: float, work: Callable[[], None]) -> None:
        self._seconds, self._work = seconds, work
        self._error: Unmeasured | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(self._seconds):
            try:
                self._work()
            except Unmeasured as error:
                self._error = error
                return

    def stop(self) -> None:
        """End the thread.

        Raises
        ------
        Unmeasured
            If `work` did.
        """
        self._done.set()
        self._thread.join()
        if self._error:
            raise self._error
