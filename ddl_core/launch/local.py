"""The launcher for this machine: a thread drives papermill, its kernel starts the ranks."""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from ddl_core.errors import DDLError, LaunchError
from ddl_core.launch import lab_book, ranks
from ddl_core.records.ending import mark_failed
from ddl_core.records.ledger import is_locked
from ddl_core.records.paths import RunFiles
from ddl_core.records.run import Failure, RunRecord, Status, read_record

CANCEL_PATIENCE_S = 30.0
ASK_EVERY_S = 1.0


class Local:
    """Executes runs on this machine, each in a notebook kernel of its own."""

    def submit(self, run_dir: Path) -> "LocalJob":
        """See `ddl_core.launch.Launcher`."""
        run_dir = Path(run_dir).resolve()
        record = read_record(run_dir)
        if record.status == "completed":
            raise LaunchError(ranks.complete_text(record, run_dir))
        if is_locked(run_dir):
            raise LaunchError(f"run {record.run_id} is being run by another process")
        return LocalJob(run_dir)


class LocalJob:
    """A run that a thread of this process drives."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._kernel: Any = None
        self._error: DDLError | None = None
        # A daemon: should this process end in spite of all, its kernel notices and ends the ranks.
        self._thread = Thread(target=self._drive, name=f"run {run_dir.name}", daemon=True)
        self._thread.start()

    @property
    def logs(self) -> Path:
        """See `ddl_core.launch.Job`."""
        return RunFiles(self.run_dir).logs

    @property
    def state(self) -> Status:
        """See `ddl_core.launch.Job`."""
        return read_record(self.run_dir).status

    @property
    def ended(self) -> bool:
        """See `ddl_core.launch.Job`."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> RunRecord:
        """See `ddl_core.launch.Job`."""
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

    def cancel(self) -> None:
        """See `ddl_core.launch.Job`."""
        deadline = time.monotonic() + CANCEL_PATIENCE_S
        while not self.ended and time.monotonic() < deadline:
            self._signal(signal.SIGINT)  # may come before the cell runs: ask again
            self._thread.join(ASK_EVERY_S)
        self._signal(signal.SIGKILL)
        self._thread.join(CANCEL_PATIENCE_S)

    def _drive(self) -> None:
        try:
            lab_book.write_lab_book(self.run_dir, self._keep_kernel)
        except DDLError as error:
            self._error = error
            self._record(error)

    def _record(self, error: DDLError) -> None:
        """Let the record say so if the kernel could not: it did not start, or was killed."""
        if not is_locked(self.run_dir) and self.state in ("planned", "submitted", "running"):
            mark_failed(self.run_dir, Failure.of(type(error).__name__, str(error)))

    def _keep_kernel(self, manager: Any) -> None:
        self._kernel = manager

    def _signal(self, number: signal.Signals) -> None:
        pid = self._kernel.pid if self._kernel and not self.ended else None
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
