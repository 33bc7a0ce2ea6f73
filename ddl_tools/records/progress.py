"""``progress.json``: written by rank 0 about once a second, read by bars and watchdogs."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ddl_core.errors import RecordError
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.storage import (
    Count,
    Index,
    Line,
    Number,
    now,
    parsed,
    read_json,
    write_atomically,
)

Standing = dict[str, Any]

INTERVAL_S = 1.0
# Without a change until the first step. Longer than what may end it with a better message: a
# collective's time-out.
SETUP_TIMEOUT_S = 1200.0
WAITING = "waiting"  # phase of a rank while other configurations measure
# Stages of a phase's first step, which may take minutes: loader processes start, and a first batch
# comes; cuDNN chooses; torch.compile works for the longest time, and so names the stage.
FIRST_STEP, COMPILING = "first step", "compiling"

Publish = Callable[[dict[str, Any]], None]


class _Standing(BaseModel):
    """``progress.json``."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    phase: Literal["setup", "train", "eval", "waiting", "done"]
    epoch: Index
    epochs: Count
    step: Count
    steps: Count
    images_per_s: Number | None = None
    stage: Line | None = None
    what: Line | None = None


def read_progress(run_dir: Path) -> Standing | None:
    """Return what rank 0 last wrote to ``progress.json``; None where that cannot be read."""
    path = RunFiles(run_dir).progress
    try:
        return parsed(path, read_json(path), _Standing).model_dump(exclude_unset=True)
    except RecordError:
        return None


def fraction(progress: Standing | None) -> float:
    """Return the share of a run's training that is done, 0 to 1."""
    if not progress or progress["phase"] == "setup":
        return 0.0
    if progress["phase"] == "done":
        return 1.0
    epochs, steps = progress["epochs"] or 1, progress["steps"] or 1
    ahead = progress["phase"] in ("train", WAITING)  # of the epoch's end
    within = progress["step"] / steps if ahead else 1.0
    return min(1.0, (progress["epoch"] + min(1.0, within)) / epochs)


def describe(progress: Standing | None) -> str:
    """Return e.g. ``"epoch 2/4 train, step 12/50, 87.3 images/s"``."""
    if not progress:
        return "starting the ranks"
    plain = {"setup": "setting up", "done": "done", WAITING: "waiting for its turn"}
    stage = progress.get("stage")
    if progress["phase"] in plain:
        text = plain[progress["phase"]]
        return f"{text}: {stage}" if stage else text
    text = f"epoch {progress['epoch'] + 1}/{progress['epochs']} {progress['phase']}"
    if stage:
        return f"{text}, {stage}"
    if what := progress.get("what"):
        text += f" ({what})"
    if progress["steps"]:
        text += f", step {progress['step']}/{progress['steps']}"
    if rate := progress.get("images_per_s"):
        text += f", {rate:.1f} images/s"
    return text


class Progress:
    """Writer of the state of a rank.

    `path` is ``progress.json`` of the run, None on all ranks but 0. `publish` is also called with
    each state, on every rank that has one. `compiles` says that first steps compile the network.
    """

    def __init__(
        self,
        path: Path | None,
        epochs: int,
        publish: Publish | None = None,
        compiles: bool = False,
    ) -> None:
        self._path, self._publish = path, publish
        self._first = COMPILING if compiles else FIRST_STEP
        self._state: dict[str, Any] = {"phase": "setup", "epoch": 0, "epochs": epochs}
        self._images_per_step = 0
        self._begun = self._written = 0.0
        self._ahead = {"train", "eval"}  # phases whose first step has not been made
        self.set_up("joining the other ranks")

    def set_up(self, stage: str) -> None:
        """Note the stage of the preparations before the first epoch."""
        self._enter("setup", 0, 0, stage)

    def begin(self, phase: str, epoch: int, images_per_step: int, what: str = "") -> None:
        """Enter a phase: ``train``, ``eval``, ``waiting`` or ``done``; `what` tells two apart."""
        first = self._first if phase in self._ahead else None
        self._enter(phase, epoch, images_per_step, first, what)

    def _enter(
        self, phase: str, epoch: int, images_per_step: int, stage: str | None, what: str = ""
    ) -> None:
        self._state |= {"phase": phase, "epoch": epoch, "stage": stage, "what": what}
        self._images_per_step = images_per_step
        self._begun = time.monotonic()
        self._write(0, 0, None)

    def step(self, done: int, steps: int) -> None:
        """Note that `done` of `steps` steps of this phase are done; cheap to call every step."""
        first = self._state["phase"] in self._ahead
        if not self._wanted or (not first and time.monotonic() - self._written < INTERVAL_S):
            return
        self._ahead.discard(self._state["phase"])
        self._state["stage"] = None
        rate = done * self._images_per_step / (time.monotonic() - self._begun)
        self._write(done, steps, rate)

    @property
    def _wanted(self) -> bool:
        return self._path is not None or self._publish is not None

    def _write(self, step: int, steps: int, images_per_s: float | None) -> None:
        if not self._wanted:
            return
        self._written = time.monotonic()
        self._state |= {"step": step, "steps": steps, "images_per_s": images_per_s}
        self._state["time_utc"] = now()
        if self._path is not None:
            # Not synced: all ranks would wait for the disk with rank 0, once a second.
            write_atomically(self._path, json.dumps(self._state) + "\n", sync=False)
        if self._publish is not None:
            self._publish(self._state)
