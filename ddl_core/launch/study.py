"""Run what is left of a study, one run after the other, on this machine."""

from pathlib import Path

from ddl_core.errors import DDLError
from ddl_core.launch import fork_server, preflight
from ddl_core.launch.local import Local, show_until_ended
from ddl_core.launch.plan import check_data, pending, write_plans
from ddl_core.launch.screen import Screen, Silence, screen
from ddl_core.launch.slurm import scheduler
from ddl_core.launch.slurm.reconcile import settled
from ddl_core.processes import stoppable
from ddl_core.records import agreement
from ddl_core.records.ledger import Entry, counts, exclusive, ledger, remedies
from ddl_core.records.paths import Tree
from ddl_core.records.progress import describe, read_progress
from ddl_core.spec.study import Study


def run_study(
    study: Study,
    tree: Tree,
    *,
    retry_failed: bool = False,
    data_dir: Path | None = None,
    progress: bool = True,
    launcher: Local | None = None,
) -> list[Entry]:
    """Run every run of `study` that has not ended; a failed one does not stop the others.

    Parameters
    ----------
    study
        What to run.
    tree
        Where its records are.
    retry_failed
        Also run again what failed.
    data_dir
        Folder of the dataset, for the runs that are started now; by default the tree's own.
    progress
        Show a progress bar.
    launcher
        By default `Local`.

    Returns
    -------
    list of Entry
        The ledger of the whole study afterwards.

    Raises
    ------
    LaunchError
        At once, if another process runs this study; or if some of its runs are jobs and SLURM does
        not answer.
    DataError, RecordError
        If the data are missing or the results cannot be written: nothing was started.
    KeyboardInterrupt
        If this process was interrupted or told to end; the run at work was ended cleanly.
    """
    preflight.check_room(tree.root)
    lock = tree.study(study.name) / ".lock"
    with exclusive(lock, f"study {study.name!r}"), stoppable():
        todo = pending(_with_jobs(ledger(study, tree)), retry_failed)
        check_data(todo, tree, data_dir)
        write_plans(study, todo, tree, data_dir)
        if todo:
            with fork_server.shared():
                shown = screen(len(todo)) if progress else Silence()
                _run_all(todo, launcher or Local(), shown)
        return ledger(study, tree)


def _with_jobs(entries: list[Entry]) -> list[Entry]:
    """Return the ledger as SLURM has it, if it was ever asked: what waits there is not run here."""
    open_jobs = any(item.job_id and item.state != "completed" for item in entries)
    return settled(entries, scheduler.queue()) if open_jobs else entries


def summary(entries: list[Entry]) -> str:
    """Return the counts, each bad end with its reason's first line, the remedies, the agreement."""
    failed = [item for item in entries if item.state in ("failed", "interrupted", "unreadable")]
    lines = [f"  {item.spec.run_id}: {item.reason.splitlines()[0]}" for item in failed]
    return "\n".join([counts(entries), *lines, *remedies(failed), *agreement.statements(entries)])


def live(entries: list[Entry]) -> list[str]:
    """Return a line on each run that is at work now."""
    return [
        f"{item.spec.run_id}: {describe(read_progress(item.directory))}"
        for item in entries
        if item.state == "running"
    ]


def _run_all(todo: list[Entry], launcher: Local, shown: Screen) -> None:
    try:
        for done, item in enumerate(todo):
            try:
                job = launcher.submit(item.directory)
                show_until_ended(job, shown, done)
                job.wait()
                shown.say(f"completed  {item.spec.run_id}")
            except DDLError as error:
                shown.say(f"failed     {item.spec.run_id}: {error}")
    finally:
        shown.close()
