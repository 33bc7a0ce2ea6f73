"""Plan a study and run what is left of it here: in order, or interleaved."""

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path

from ddl_core.config import RunSpec
from ddl_core.data.dataset import Dataset
from ddl_core.errors import DataError, DDLError, RecordError, SpecError
from ddl_core.files import is_there
from ddl_core.schedules import derive_seed
from ddl_core.spelling import choices
from ddl_tools.consent import allowing
from ddl_tools.launch import local_ranks, measuring, preflight
from ddl_tools.launch.commands import Allocation
from ddl_tools.launch.interleave import Submit, run_interleaved
from ddl_tools.launch.notebook import LocalJob, cancel_all, submit
from ddl_tools.launch.screen import Screen, screen
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.slurm.reconcile import settle, with_queue
from ddl_tools.launch.slurm.slurm_cli import Queue
from ddl_tools.names import Names, named, plural, varying
from ddl_tools.processes import stoppable
from ddl_tools.records import agreement
from ddl_tools.records.identity import LEARNING
from ddl_tools.records.ledger import (
    TO_RETRY,
    TO_RUN,
    Entry,
    counts,
    data_folder,
    entry,
    exclusive,
    ledger,
    plan,
    plan_one,
    read_study,
    remedies,
    require_folder,
    study_runs,
)
from ddl_tools.records.paths import STUDIES, RunFiles, Tree, locate, portable
from ddl_tools.records.progress import describe, fraction, read_progress
from ddl_tools.records.run import RunRecord, write_record
from ddl_tools.study import Study

SHOW_EVERY_S = 1.0
NOTICEABLE_S = 0.1  # of a run
ALMOST = 0.99


def find_study(name: str) -> Study:
    """Load a study by its file, or by its bare name from the project's ``studies/``."""
    if Path(name).suffix in (".yaml", ".yml"):
        return Study.load(Path(name))
    known = sorted(path.stem for path in STUDIES.glob("*.yaml"))
    if name not in known:
        raise SpecError(f"unknown study {name!r}; {choices(name, known, 'name a .yaml file')}")
    return Study.load(STUDIES / f"{name}.yaml")


def read_runs(
    study: Study, tree: Tree, ask: Callable[[], Queue | None] | None = None
) -> list[Entry]:
    """Return the runs of a study as their records and SLURM's queue have them.

    Each record is read once, then `ask` returns the queue; by default SLURM is asked if a record
    names a job that has not completed its run.
    """
    entries = ledger(study, tree)
    if ask is None:
        if not any(item.job_id and item.state != "completed" for item in entries):
            return entries
        ask = slurm_cli.queue
    return with_queue(entries, ask())


def pending(entries: list[Entry], retry_failed: bool = False) -> list[Entry]:
    """Return what a study still has to run, and no job in a queue will.

    A run stopped from outside has not failed.
    """
    wanted = TO_RETRY if retry_failed else TO_RUN
    return [item for item in entries if item.state in wanted and not item.queued]


def write_plans(study: Study, todo: list[Entry], tree: Tree, data_dir: Path | None) -> list[Entry]:
    """Give runs of a study records that they can be started from; return the runs with these."""
    planned = plan(study, tree, data_dir, [_set_aside_damaged(item) for item in todo])
    return [_point_to(item, data_dir) for item in planned]


def check_data(entries: list[Entry], tree: Tree, data_dir: Path | None = None) -> dict[str, int]:
    """Check the folders that some runs will read; return what `check_images` does."""
    check_folders(entries, tree, data_dir)
    return check_images(entries, tree, data_dir)


def check_folders(entries: list[Entry], tree: Tree, data_dir: Path | None = None) -> None:
    """Check that the folders that some runs will read hold data of their format."""
    places = ((_folder_of(item, tree, data_dir), item.spec.data_format) for item in entries)
    for folder, data_format in sorted({(folder, form) for folder, form in places if folder}):
        preflight.check_data(folder, data_format)


def check_images(entries: list[Entry], tree: Tree, data_dir: Path | None = None) -> dict[str, int]:
    """Check that runs ask for no more images and classes than the folders have that are there.

    Return the training images by run_id, where a folder has them. Other faults of a folder are left
    to the ranks.
    """
    images: dict[str, int] = {}
    checked: dict[object, int] = {}
    for item in entries:
        spec, folder = item.spec, _folder_of(item, tree, data_dir)
        preflight.check_batch(spec)
        if folder is None or spec.data_format != "folder":
            continue
        limits = (spec.train_images, spec.eval_images, spec.classes, spec.global_batch_size)
        if (folder, limits) not in checked:
            checked[folder, limits] = 0
            with suppress(DataError):
                train = Dataset(spec, folder, "train")
                checked[folder, limits] = len(train.chosen)
                preflight.check_batch(spec.model_copy(update={"train_images": len(train)}))
                if spec.work == "train" and spec.eval_every:
                    Dataset(spec, folder, "eval")
        if checked[folder, limits]:
            images[spec.run_id] = checked[folder, limits]
    return images


def _folder_of(item: Entry, tree: Tree, data_dir: Path | None) -> Path | None:
    """Return the folder that a run will read: by default the one that it was planned with."""
    if data_dir is None and item.record is not None:
        planned = item.record.data_dir
        return locate(planned) if planned else None
    return data_folder(item.spec, tree, data_dir)


def check_single(spec: RunSpec, study: str, tree: Tree) -> None:
    """Check that a single run can start here, and that a study of this name plans it, if any."""
    preflight.check_run(spec)
    known = read_study(study, tree)
    if known and spec.run_id not in {one.run_id for one in study_runs(known, tree)}:
        raise SpecError(
            f"study {study!r} in {tree.runs} does not plan this run, and no figure would show it; "
            "choose another name with --study, or add the run to the study's file"
        )


def check_start(
    spec: RunSpec, study: str, tree: Tree, data_dir: Path | None = None
) -> dict[str, int]:
    """Check all that can be checked before a single run starts; return what `check_images` does."""
    check_single(spec, study, tree)
    directory = tree.study(study) / spec.run_id
    preflight.check_room(directory)
    return check_data([entry(spec, directory)], tree, data_dir)


def plan_single(spec: RunSpec, study: str, tree: Tree, data_dir: Path | None = None) -> Path:
    """Plan a single run once all that can be checked before its start is; return its folder."""
    check_start(spec, study, tree, data_dir)
    return plan_run(spec, study, tree, data_dir)


def plan_run(spec: RunSpec, study: str, tree: Tree, data_dir: Path | None = None) -> Path:
    """Plan a single run, unless it is planned already; return its folder."""
    return _point_to(plan_one(spec, study, tree, data_dir), data_dir).directory


def _point_to(item: Entry, data_dir: Path | None) -> Entry:
    """Let a run that has not completed read from another folder, if one is named."""
    record, folder = item.record, portable(data_dir) if data_dir else None
    if not record or not folder or record.status == "completed":
        return item
    if record.data_dir in (None, folder):
        return item
    record = record.model_copy(update={"data_dir": folder})
    write_record(item.directory, record)
    return replace(item, record=record)


def _set_aside_damaged(item: Entry) -> Entry:
    """Rename a damaged record, with its lines and checkpoint: a new one would take them."""
    if item.state != "damaged":
        return item
    require_folder(item.directory)
    files = RunFiles(item.directory)
    places = (f".damaged{number or ''}" for number in itertools.count())
    end = next(one for one in places if not any(item.directory.glob(f"*{one}")))
    for path in (files.record, files.epochs, files.checkpoint, files.state):
        try:
            if is_there(path):
                path.replace(path.with_name(path.name + end))
        except OSError as error:
            raise RecordError(f"cannot set aside {path}: {error.strerror}") from None
    return Entry(item.spec, item.directory, "missing")


def run_study(
    study: Study,
    tree: Tree,
    *,
    retry_failed: bool = False,
    data_dir: Path | None = None,
    only: Collection[str] | None = None,
    progress: bool = True,
    parallel: int = 1,
    submit: Submit = submit,
) -> list[Entry]:
    """Run every run of `study` that has not ended; a failed one does not stop the others.

    `SpecError` if runs of a study that measures throughput would slow each other. `LaunchError` if
    another process runs this study, or if SLURM, which has some of its runs, is silent. `DataError,
    RecordError` if the data are missing or the results cannot be written: nothing was started.
    `KeyboardInterrupt` if this process was interrupted or told to end; the run at work was ended
    cleanly.

    Parameters
    ----------
    study, tree
        The study, and where its records are.
    retry_failed
        Also run again what failed.
    data_dir
        Folder of the dataset, for the runs that are started now; by default the tree's own.
    only
        Plan and run no others than these, by `run_id`.
    progress
        Show a progress bar.
    parallel
        Runs at the same time, more than one for a study of accuracy alone.
    submit
        Starts a run.

    Returns
    -------
    list of Entry
        The ledger of the whole study afterwards.
    """
    if parallel > 1 and not _asks_for_accuracy(study):
        raise SpecError(
            f"study {study.name!r} measures throughput, and {parallel} runs at the same time would "
            "slow each other; leave out --parallel, which is for studies that vary the schedule or "
            "another setting that changes no speed"
        )
    preflight.check_room(tree.root)
    lock = tree.study(study.name) / ".lock"
    with exclusive(lock, f"study {study.name!r}"), stoppable():
        entries = read_runs(study, tree)
        if any(item.is_lost for item in entries):
            entries = settle(entries)
        if retry_failed:
            entries = [_without_slurm(item) for item in entries]
        todo = [
            item
            for item in pending(entries, retry_failed)
            if only is None or item.spec.run_id in only
        ]
        for item in todo:
            preflight.check_code(item.spec)
        check_data(todo, tree, data_dir)
        todo = write_plans(study, todo, tree, data_dir)
        if not todo:
            return ledger(study, tree)
        # Not in a SLURM job, whose ranks may be on other nodes.
        interleaved = study.interleave is not None and Allocation.current() is None
        epochs = sum(one.spec.epochs for one in todo)
        total, part = (epochs, "epoch") if interleaved else (len(todo), "run")
        with (
            measuring.alone(f"study {study.name!r}"),
            # All: a block may need a further run of a baseline whose own are complete.
            allowing(spec.command for spec in study.expand()),
            local_ranks.shared(),
            closing(screen(total, part) if progress else Screen(total)) as shown,
        ):
            if interleaved:
                run_interleaved(study, todo, tree, data_dir, submit, shown)
            else:
                names = named(study.expand())
                _run_in_order(_drawn(study, todo), submit, shown, names, parallel)
        return ledger(study, tree)


def _asks_for_accuracy(study: Study) -> bool:
    """Say whether a study varies what changes no speed: its throughputs stand in no figure."""
    return bool(LEARNING & set(varying(list(map(dict, study.expand())))))


def _without_slurm(item: Entry) -> Entry:
    """Return a run that was handed to a SLURM elsewhere as one that is left; any other as it is."""
    elsewhere = item.state == "submitted" and item.queued is None
    return replace(item, state="interrupted") if elsewhere else item


def summary(entries: list[Entry]) -> str:
    """Return the counts, how runs ended badly, what to do about it, and whether weights agree."""
    bad = ("failed", "interrupted", "damaged")
    failed = [item for item in entries if item.state in bad]
    names = named(item.spec for item in entries)
    lines = [f"  {names[item.spec.run_id]}: {item.reason.splitlines()[0]}" for item in failed]
    said = [
        *remedies(failed),
        *doubts(agreement.completed(entries)),
        *agreement.statements(entries),
    ]
    return "\n".join([counts(entries), *lines, *said])


def doubts(records: Sequence[RunRecord]) -> list[str]:
    """Return a line on runs that break rules and are drawn nowhere, one on those that were slowed.

    Both are of completed runs.
    """
    emulated = [one for one in records if one.spec.simulated and one.status == "completed"]
    invalid = [(one.run_id, why) for one in emulated if (why := one.rejected)]
    lines = [
        f"rejected, and drawn nowhere: {len(invalid)} of "
        f"{plural(len(emulated), 'emulated run')}, e.g. "
        f"{run_id}: {'; '.join(why)} (docs/explanation/emulation.md)"
        for run_id, why in invalid[:1]
    ]
    few = [
        (one.run_id, one.system["reporting"], one.spec.world_size)
        for one in records
        if one.system and (one.system.get("reporting") or one.spec.world_size) < one.spec.world_size
    ]
    lines += [
        f"images of one part of the ranks: in {len(few)} of {plural(len(records), 'run')}, e.g. "
        f"{run_id}, {number} of {ranks} ranks say how many images they train on; let one print "
        "images_all, or all of them images"
        for run_id, number, ranks in few[:1]
    ]
    stopped = [(one.system or {}).get("throttled_s") or 0 for one in records]
    if slowed := [seconds for seconds in stopped if seconds >= NOTICEABLE_S]:
        lines.append(
            f"slowed down: a quota of CPU time stopped {len(slowed)} of "
            f"{plural(len(stopped), 'run')}, for up to {max(slowed):.1f} s (system.throttled_s); "
            "use fewer ranks or loader_workers, or ask for more cores"
        )
    return lines


def live(entries: list[Entry]) -> list[str]:
    """Return a line on each run that is at work now."""
    names = named(item.spec for item in entries)
    return [
        f"{names[item.spec.run_id]}: {describe(read_progress(item.directory))}"
        for item in entries
        if item.state == "running"
    ]


def _drawn(study: Study, todo: list[Entry]) -> list[Entry]:
    """Return the runs of one repetition after the other, each in an order drawn from their names.

    In the order of the grid, a machine that drifts would touch one end of every axis alone.
    """

    def rank(item: Entry) -> tuple[int, int]:
        return item.spec.repeat, derive_seed(f"order of {study.name}, {item.spec.run_id}")

    return sorted(todo, key=rank)


def _run_in_order(
    todo: list[Entry], submit: Submit, shown: Screen, names: Names, parallel: int
) -> None:
    """Start the runs in their order, each once fewer than `parallel` are at work."""
    waiting, jobs = deque(todo), dict[str, LocalJob]()
    with _ending(jobs):
        while waiting or jobs:
            while waiting and len(jobs) < parallel:
                item = waiting.popleft()
                with _said(shown, name := names[item.spec.run_id]):
                    jobs[name] = submit(item.directory)
            _show_until_one_ended(jobs.values(), shown, len(todo) - len(waiting) - len(jobs))
            for name in [name for name, job in jobs.items() if job.ended]:
                with _said(shown, name):
                    jobs.pop(name).wait()
                    shown.say(f"completed  {name}")


@contextmanager
def _said(shown: Screen, name: str) -> Iterator[None]:
    """Show how a run failed in the block; it stops no other."""
    try:
        yield
    except DDLError as error:
        shown.say(f"failed     {name}: {error}")


def run_one(run_dir: Path, command: str | None = None) -> RunRecord:
    """Execute one planned run through its notebook and show its progress; return its record.

    `command` is that of the user's which this call names; another one does not start.
    """
    name = f"run {run_dir.name}"
    with (
        allowing([command]),
        closing(screen(1)) as shown,
        stoppable(),
        measuring.alone(name),
        local_ranks.shared(),
    ):
        jobs = {run_dir.name: submit(run_dir)}
        with _ending(jobs):
            _show_until_one_ended(jobs.values(), shown, 0)
            return jobs[run_dir.name].wait()


def _show_until_one_ended(jobs: Collection[LocalJob], shown: Screen, done: int) -> None:
    """Show the progress of jobs until one ends."""
    while jobs and not any(job.ended for job in jobs):
        known = [(job.run_dir.name, read_progress(job.run_dir)) for job in jobs]
        # A run that evaluates or ends is still one at work.
        parts = sum(min(fraction(progress), ALMOST) for _, progress in known)
        shown.show(done + parts, *known[0])
        wait([job.sentinel for job in jobs], SHOW_EVERY_S)


@contextmanager
def _ending(jobs: dict[str, LocalJob]) -> Iterator[None]:
    """End the jobs that are at work when this process is interrupted in the block."""
    try:
        yield
    except KeyboardInterrupt:
        cancel_all(jobs.values())
        raise
