"""Starting runs: here (`local`) or elsewhere. A launcher takes a planned run and returns a job."""

from pathlib import Path
from typing import Protocol

from ddl_core.records.run import RunRecord, Status


class Job(Protocol):
    """A run that was handed to a launcher."""

    @property
    def run_dir(self) -> Path:
        """Folder of the run."""
        ...

    @property
    def logs(self) -> Path:
        """Folder of the ranks' output."""
        ...

    @property
    def state(self) -> Status:
        """What the run's record says now."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the launcher has nothing left to do for this job."""
        ...

    def wait(self, timeout: float | None = None) -> RunRecord:
        """Wait for the end and return the record.

        Raises
        ------
        LaunchError
            If the run failed, with its own error; or if `timeout` seconds were not enough.
        """
        ...

    def cancel(self) -> None:
        """End the run and every process of it; a run that is complete stays complete."""
        ...


class Launcher(Protocol):
    """Something that can execute planned runs."""

    def submit(self, run_dir: Path) -> Job:
        """Start the planned run in `run_dir` and return at once.

        Raises
        ------
        LaunchError
            If the run is complete already, or is being run by another process.
        """
        ...
