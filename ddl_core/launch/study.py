"""Run what is left of a study, one run after the other, on this machine."""

import time
from pathlib import Path

from ddl_core.errors import DDLError, RecordError, SpecError
from ddl_core.launch import Job, Launcher, fork_server, preflight
from ddl_core.launch.local import Local
from ddl_core.launch.screen import Screen, describe, read_progress, screen
from ddl_core.launch.slurm import scheduler
from ddl_core.launch.slurm.reconcile import settled
from ddl_core.processes import stoppable
from ddl_core.records import agreement
from ddl_core.records.ledger import (
    TO_RETRY,
    TO_RUN,
    Entry,
    counts,
    exclusive,
    ledger,
    plan,
    remedies,
)
from ddl_core.records.paths import STUDIES, RunFiles, Tree, locate, portable
from ddl_core.records.run import RunRecord, read_record, write_record
from ddl_core.spec.run import RunSpec, Study

POLL_S = 0.25


def run_study(
    study: Study,
    tree: Tree,
    *,
    retry_failed: bool = False,
    data_dir: Path | None = None,
    progress: bool = True,
    launcher: Launcher | None = None,
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
                shown = screen(len(todo)) if progress else _Silence()
                _run_all(todo, launcher or Local(), shown)
        return ledger(study, tree)


def _with_jobs(entries: list[Entry]) -> list[Entry]:
    """Return the ledger as SLURM has it, if it was ever asked: what waits there is not run here."""
    open_jobs = any(item.job_id and item.state != "completed" for item in entries)
    return settled(entries, scheduler.queue()) if open_jobs else entries


def find_study(name: str) -> Study:
    """Load a study by its file, or by its bare name from the project's ``studies/``.

    Raises
    ------
    SpecError
        If there is no such study, or its file is wrong.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        return Study.load(Path(name))
    known = sorted(path.stem for path in STUDIES.glob("*.yaml"))
    if name not in known:
        raise SpecError(
            f"unknown study {name!r}; choose one of: {', '.join(known)}; or name a .yaml file"
        )
    return Study.load(STUDIES / f"{name}.yaml")


def pending(entries: list[Entry], retry_failed: bool = False) -> list[Entry]:
    """Return what a study still has to run; a run stopped from outside has not failed."""
    wanted = TO_RETRY if retry_failed else TO_RUN
    return [item for item in entries if item.state in wanted]


def write_plans(study: Study, todo: list[Entry], tree: Tree, data_dir: Path | None) -> None:
    """Give every run of a study a record, and those in `todo` one that can be started from."""
    for item in todo:
        _set_aside_unreadable(item)
    plan(study, tree, data_dir)
    if data_dir:
        for item in todo:
            _point_to(item.directory, data_dir)


def check_data(entries: list[Entry], tree: Tree, data_dir: Path | None = None) -> None:
    """Check the folders that some runs will read.

    Raises
    ------
    DataError
        If one is missing or cannot be read.
    """
    places = ((_folder_of(item, tree, data_dir), item.spec.data_format) for item in entries)
    for folder, data_format in sorted({(folder, form) for folder, form in places if folder}):
        preflight.check_data(folder, data_format)


def _folder_of(item: Entry, tree: Tree, data_dir: Path | None) -> Path | None:
    """Return what a run will read: what is chosen now, else what was chosen when it was planned."""
    if data_dir is None and item.state not in ("missing", "unreadable"):
        planned = read_record(item.directory).data_dir
        return locate(planned) if planned else None
    return data_folder(item.spec, tree, data_dir)


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


def plan_run(spec: RunSpec, study: str, tree: Tree, data_dir: Path | None = None) -> Path:
    """Plan a single run, unless it is planned already; return its folder."""
    directory = tree.study(study) / spec.run_id
    folder = data_folder(spec, tree, data_dir)
    if not RunFiles(directory).record.exists():
        write_record(directory, RunRecord.plan(study, spec, portable(folder) if folder else None))
    elif data_dir:
        _point_to(directory, data_dir)
    return directory


def data_folder(spec: RunSpec, tree: Tree, chosen: Path | None = None) -> Path | None:
    """Return the folder a run reads, None for synthetic data."""
    return None if spec.loader == "synthetic" else chosen or tree.dataset(spec.dataset)


def run_one(run_dir: Path, *, progress: bool = True, launcher: Launcher | None = None) -> RunRecord:
    """Execute one planned run and show its progress; return its completed record.

    Raises
    ------
    LaunchError
        If the run failed, was complete before, or is at work elsewhere.
    KeyboardInterrupt
        If this process was interrupted; the run was ended cleanly.
    """
    shown = screen(1) if progress else _Silence()
    try:
        with stoppable(), fork_server.shared():
            job = (launcher or Local()).submit(run_dir)
            _follow(job, shown, 0)
            return job.wait()
    finally:
        shown.close()


def _run_all(todo: list[Entry], launcher: Launcher, shown: Screen) -> None:
    try:
        for done, item in enumerate(todo):
            try:
                job = launcher.submit(item.directory)
                _follow(job, shown, done)
                job.wait()
                shown.say(f"completed  {item.spec.run_id}")
            except DDLError as error:
                shown.say(f"failed     {item.spec.run_id}: {error}")
    finally:
        shown.close()


def _follow(job: Job, shown: Screen, done: int) -> None:
    """Show a job's progress until it ends; end it when this process is interrupted."""
    try:
        while not job.ended:
            shown.show(done, job.run_dir.name, read_progress(job.run_dir))
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        job.cancel()
        raise


def _point_to(directory: Path, data_dir: Path) -> None:
    """Let a run that has not completed read from another folder."""
    record = read_record(directory)
    folder = portable(data_dir)
    if record.status != "completed" and record.data_dir not in (None, folder):
        write_record(directory, record.model_copy(update={"data_dir": folder}))


def _set_aside_unreadable(item: Entry) -> None:
    """Make room for a new record; the unreadable one is kept for whoever wants to look at it."""
    if item.state != "unreadable":
        return
    record = RunFiles(item.directory).record
    try:
        record.replace(record.with_suffix(".json.unreadable"))
    except OSError as error:
        raise RecordError(f"cannot set aside {record}: {error.strerror}") from None


class _Silence:
    """A screen that shows nothing."""

    def show(self, done: int, name: str, progress: object) -> None:
        """Ignore it."""

    def say(self, line: str) -> None:
        """Ignore it."""

    def close(self) -> None:
        """Ignore it."""
