"""Where a run is now: written by rank 0 about once a second, read by bars and watchdogs."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddl_core.records.run import now, write_atomically

INTERVAL_S = 1.0

Publish = Callable[[dict[str, Any]], None]


class Progress:
    """A rank's sign of life.

    Parameters
    ----------
    path : Path or None
        ``progress.json`` of the run; None on all ranks but 0.
    epochs : int
        Epochs of the whole run.
    publish : callable or None
        Also called with the state, on every rank that has one: for someone who watches each rank.
    """

    def __init__(self, path: Path | None, epochs: int, publish: Publish | None = None) -> None:
        self._path, self._publish = path, publish
        self._state: dict[str, Any] = {"phase": "setup", "epoch": 0, "epochs": epochs}
        self._images_per_step = 0
        self._begun = self._written = 0.0
        self.begin("setup", 0, 0)

    def begin(self, phase: str, epoch: int, images_per_step: int) -> None:
        """Enter a phase: ``setup``, ``train``, ``eval`` or ``done``."""
        self._state |= {"phase": phase, "epoch": epoch}
        self._images_per_step = images_per_step
        self._begun = time.monotonic()
        self._write(0, 0, None)

    def step(self, done: int, steps: int) -> None:
        """Tell that `done` of `steps` steps of this phase are done; cheap to call every step."""
        if not self._wanted or time.monotonic() - self._written < INTERVAL_S:
            return
        rate = done * self._images_per_step / (time.monotonic() - self._begun)
        self._write(done, steps, rate)

    @property
    def _wanted(self) -> bool:
        return self._path is not None or self._publish is not None

    def _write(self, step: int, steps: int, images_per_s: float | None) -> None:
        if not self._wanted:
            return
        self._written = time.monotonic()
        self._state |= {
            "step": step,
            "steps": steps,
            "images_per_s": images_per_s,
            "time_utc": now(),
        }
        if self._path is not None:
            write_atomically(self._path, json.dumps(self._state) + "\n")
        if self._publish is not None:
            self._publish(self._state)
