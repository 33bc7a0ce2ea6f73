"""One run on this machine: a thread drives papermill, its kernel starts the ranks."""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from ddl_core.errors import DDLError, Interrupted, LaunchError
from ddl_tools.launch import fork_server, measuring, notebook
from ddl_tools.launch.screen import Screen, screen
from ddl_tools.processes import stoppable
from ddl_tools.records.ledger import (
    complete_text,
    finish_run,
    is_locked,
)
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.progress import fraction, read_progress
from ddl_tools.records.run import Failure, RunRecord, Status, read_record

CANCEL_PATIENCE_S = 30.0
ASK_EVERY_S = 1.0

POLL_S = 0.25
ALMOST = 0.99


class Local:
    """Executes runs on this machine, each in a notebook kernel of its own."""

    def submit(self, run_dir: Path) -> "LocalJob":
        """Start the planned run in `run_dir` and return at once.

        Raises
        ------
        LaunchError
            If the run is complete already, or is being run by another process.
        """
        run_dir = Path(run_dir).resolve()
        record = read_record(run_dir)
        if record.status == "completed":
            raise LaunchError(complete_text(record, run_dir))
        if is_locked(run_dir):
            raise LaunchError(f"run {record.run_id} is being run by another process")
        return LocalJob(run_dir)


class LocalJob:
    """A run that a thread of this process drives."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._kernel: Any = None
        self._error: DDLError | None = None
        self._stopped = False
        # A daemon: should this process end in spite of all, its kernel notices and ends the ranks.
        self._thread = Thread(target=self._drive, name=f"run {run_dir.name}", daemon=True)
        self._thread.start()

    @property
    def logs(self) -> Path:
        """Folder of the ranks' output."""
        return RunFiles(self.run_dir).logs

    @property
    def state(self) -> Status:
        """What the run's record says now."""
        return read_record(self.run_dir).status

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do for this run."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> RunRecord:
        """Wait for the end and return the record.

        Raises
        ------
        LaunchError
            If the run failed, with its own error; or if `timeout` seconds were not enough.
        """
        self._thread.join(timeout)
        if not self.ended:
            raise LaunchError(f"run {self.run_dir.name} has not ended within {timeout} s")
        record = read_record(self.run_dir)
        if record.status == "completed":
            if self._error:
                sys.stderr.write(f"{record.run_id} is complete, but its lab book: {self._error}\n")
            return record
        if record.error:
            raise LaunchError(f"{record.error.kind}: {record.error.message}")
        raise self._error or LaunchError(f"run {record.run_id} ended as {record.status!r}")

    def interrupt(self) -> None:
        """Ask the run to end, and do not wait for it."""
        self._stopped = True
        self._signal(signal.SIGINT)

    def cancel(self) -> None:
        """End the run and every process of it; a run that is complete stays complete."""
        deadline = time.monotonic() + CANCEL_PATIENCE_S
        while not self.ended and time.monotonic() < deadline:
            self.interrupt()  # may come before the cell runs: ask again
            self._thread.join(ASK_EVERY_S)
        self._signal(signal.SIGKILL)
        self._thread.join(CANCEL_PATIENCE_S)

    def _drive(self) -> None:
        try:
            notebook.write_lab_book(self.run_dir, self._keep_kernel)
        except DDLError as error:
            # A kernel that is interrupted while it starts does not survive.
            self._error = error = Interrupted("told to stop") if self._stopped else error
            try:
                self._record(error)
            except DDLError as unwritten:  # it has the reason too
                self._error = unwritten

    def _record(self, error: DDLError) -> None:
        """Let the record say so if the kernel could not: it did not start, or was killed."""
        if not is_locked(self.run_dir) and self.state in ("planned", "submitted", "running"):
            finish_run(self.run_dir, Failure.of_error(error))

    def _keep_kernel(self, manager: Any) -> None:
        self._kernel = manager

    def _signal(self, number: signal.Signals) -> None:
        pid = self._kernel.pid if self._kernel and not self.ended else None
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def run_one(run_dir: Path, *, progress: bool = True, launcher: Local | None = None) -> RunRecord:
    """Execute one planned run and show its progress; return its completed record.

    Raises
    ------
    LaunchError
        If the run failed, was complete before, or is at work elsewhere.
    KeyboardInterrupt
        If this process was interrupted; the run was ended cleanly.
    """
    shown = screen(1) if progress else Screen(1)
    try:
        with stoppable(), measuring.alone(f"run {run_dir.name}"), fork_server.shared():
            job = (launcher or Local()).submit(run_dir)
            show_until_ended(job, shown, 0)
            return job.wait()
    finally:
        shown.close()


def show_until_ended(job: LocalJob, shown: Screen, done: int) -> None:
    """Show a job's progress until it ends; end it when this process is interrupted."""
    try:
        while not job.ended:
            progress = read_progress(job.run_dir)
            # A run that evaluates or ends is still the one at work.
            shown.show(done + min(fraction(progress), ALMOST), job.run_dir.name, progress)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        job.cancel()
        raise
