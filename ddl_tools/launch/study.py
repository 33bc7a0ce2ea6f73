"""Run what is left of a study on this machine: one run after the other, or all in turns."""

from dataclasses import replace
from pathlib import Path

from ddl_core.errors import DDLError
from ddl_core.schedules import derive_seed
from ddl_tools.emulation import validity
from ddl_tools.labels import Names, named
from ddl_tools.launch import fork_server, measuring, preflight
from ddl_tools.launch.commands import Allocation
from ddl_tools.launch.local import Local, show_until_ended
from ddl_tools.launch.plan import check_data, pending, write_plans
from ddl_tools.launch.screen import Screen, screen
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.slurm.reconcile import queued, reconciled
from ddl_tools.launch.turns import run_in_turns
from ddl_tools.processes import stoppable
from ddl_tools.records import agreement
from ddl_tools.records.ledger import Entry, counts, exclusive, ledger, remedies
from ddl_tools.records.paths import Tree
from ddl_tools.records.progress import describe, read_progress
from ddl_tools.study import Study


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
        not answer. What another process measures on this machine is waited for.
    DataError, RecordError
        If the data are missing or the results cannot be written: nothing was started.
    KeyboardInterrupt
        If this process was interrupted or told to end; the run at work was ended cleanly.
    """
    preflight.check_room(tree.root)
    lock = tree.study(study.name) / ".lock"
    with exclusive(lock, f"study {study.name!r}"), stoppable():
        todo = _to_do(ledger(study, tree), retry_failed)
        check_data(todo, tree, data_dir)
        write_plans(study, todo, tree, data_dir)
        if todo:
            with measuring.alone(f"study {study.name!r}"), fork_server.shared():
                _run_all(study, todo, tree, data_dir, launcher or Local(), progress)
        return ledger(study, tree)


def _run_all(
    study: Study,
    todo: list[Entry],
    tree: Tree,
    data_dir: Path | None,
    launcher: Local,
    progress: bool,
) -> None:
    # Not in turns in a SLURM job, whose ranks may be on other nodes.
    turns = study.interleave is not None and Allocation.current() is None
    total, part = (sum(one.spec.epochs for one in todo), "epoch") if turns else (len(todo), "run")
    shown = screen(total, part) if progress else Screen(total)
    try:
        if turns:
            run_in_turns(study, todo, tree, data_dir, launcher, shown)
        else:
            _one_by_one(_drawn(study, todo), launcher, shown, named(study.expand()))
    finally:
        shown.close()


def _to_do(entries: list[Entry], retry_failed: bool) -> list[Entry]:
    """Return what is left; what SLURM has in its queue is not run here, if it was ever asked.

    Where there is no SLURM, what was handed to one elsewhere is run on demand, like what failed.
    """
    if not any(item.job_id and item.state != "completed" for item in entries):
        return pending(entries, retry_failed)
    queue = slurm_cli.queue()
    if queue is None and retry_failed:
        gone = [item.state == "submitted" for item in entries]
        entries = [
            replace(item, state="interrupted") if lost else item
            for item, lost in zip(entries, gone, strict=True)
        ]
    left = pending(reconciled(entries, queue), retry_failed)
    # One that failed in a block whose job is still there may be tried again by that job.
    return [item for item in left if not queued(item, queue)]


def summary(entries: list[Entry]) -> str:
    """Return the counts, each bad end with its reason's first line, the remedies, the agreement."""
    bad = ("failed", "interrupted", "unreadable", "damaged")
    failed = [item for item in entries if item.state in bad]
    names = named(item.spec for item in entries)
    lines = [f"  {names[item.spec.run_id]}: {item.reason.splitlines()[0]}" for item in failed]
    doubts = validity.warnings(agreement.completed(entries))
    said = [*remedies(failed), *doubts, *agreement.statements(entries)]
    return "\n".join([counts(entries), *lines, *said])


def live(entries: list[Entry]) -> list[str]:
    """Return a line on each run that is at work now."""
    names = named(item.spec for item in entries)
    return [
        f"{names[item.spec.run_id]}: {describe(read_progress(item.directory))}"
        for item in entries
        if item.state == "running"
    ]


def _drawn(study: Study, todo: list[Entry]) -> list[Entry]:
    """Return the runs repetition by repetition, each in an order that is drawn from their names.

    In the order of the grid, a machine that drifts would touch one end of every axis alone.
    """

    def place(item: Entry) -> tuple[int, int]:
        return item.spec.repeat, derive_seed(f"order of {study.name}, {item.spec.run_id}")

    return sorted(todo, key=place)


def _one_by_one(todo: list[Entry], launcher: Local, shown: Screen, names: Names) -> None:
    for done, item in enumerate(todo):
        name = names[item.spec.run_id]
        try:
            job = launcher.submit(item.directory)
            show_until_ended(job, shown, done)
            job.wait()
            shown.say(f"completed  {name}")
        except DDLError as error:
            shown.say(f"failed     {name}: {error}")
