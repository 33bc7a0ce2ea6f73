"""Hand what is left of a study to SLURM, one job per run, and say what that may cost at most.

The large runs of an arm may wait for a small one: a broken set-up then burns few node-hours.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddl_core.errors import DDLError, LaunchError
from ddl_core.launch import preflight
from ddl_core.launch.plan import check_data, pending, write_plans
from ddl_core.launch.slurm import reconcile, scheduler
from ddl_core.launch.slurm.reconcile import queued, settled
from ddl_core.launch.slurm.scheduler import Queue
from ddl_core.launch.slurm.script import Options, Place, render, requeues
from ddl_core.launch.slurm.site import Site
from ddl_core.records.ledger import Entry, exclusive, ledger
from ddl_core.records.paths import PROJECT, RunFiles, Tree
from ddl_core.records.run import read_record, write_record
from ddl_core.records.storage import write_atomically
from ddl_core.spec.run import RunSpec
from ddl_core.spec.study import Study

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Submission:
    """A run that is to be submitted, with its script."""

    entry: Entry
    script: str
    node_hours: float
    after: Entry | None = None  # starts once this run is complete


@dataclass(frozen=True)
class Submissions:
    """What is about to be submitted, out of all runs of a study."""

    entries: list[Entry]
    jobs: list[Submission]
    left_out: list[Entry]  # the small runs of their arm have failed


@dataclass(frozen=True)
class Arm:
    """What one arm of a study may cost at most."""

    name: str
    runs: int
    complete: int
    jobs: int
    node_hours: float


@dataclass(frozen=True)
class Choice:
    """Which of a study's runs are submitted, and in which order."""

    retry_failed: bool = False
    small_first: bool = False


def prepare(
    entries: list[Entry],
    site: Site,
    options: Options,
    queue: scheduler.Queue | None,
    choice: Choice,
) -> Submissions:
    """Return the jobs of what a study still has to run; write nothing.

    What is complete or at work, by its ledger joined with `queue`, has no job; nor has what failed,
    unless that is chosen.

    Raises
    ------
    SpecError
        If an option or a run does not fit the site.
    """
    options.check(site)
    todo = pending(entries, choice.retry_failed)
    for item in todo:
        preflight.check_batch(item.spec)
    order, waits = small_first(entries, todo, queue) if choice.small_first else (todo, {})
    jobs = [_job(item, site, options, waits.get(item.spec.run_id)) for item in order]
    return Submissions(entries, jobs, [item for item in todo if item not in order])


def _job(item: Entry, site: Site, options: Options, after: Entry | None) -> Submission:
    place = Place(item.directory, PROJECT, sys.executable)
    text = render(item.spec, site, options, place)
    return Submission(item, text, node_hours(item.spec, site, options), after)


def node_hours(spec: RunSpec, site: Site, options: Options) -> float:
    """Return what a run may cost at most: nodes x time limit x starts, in hours."""
    starts = 1 + requeues(spec, site)
    return spec.nodes * starts * options.limit_s(site) / SECONDS_PER_HOUR


def arms(entries: list[Entry], jobs: list[Submission]) -> list[Arm]:
    """Return the cost of each arm (strategy, loader, model), in order of appearance."""
    found = []
    for name in dict.fromkeys(arm(item.spec) for item in entries):
        own = [item for item in entries if arm(item.spec) == name]
        hours = [job.node_hours for job in jobs if arm(job.entry.spec) == name]
        complete = sum(item.state == "completed" for item in own)
        found.append(Arm(name, len(own), complete, len(hours), sum(hours)))
    return found


def show_costs(entries: list[Entry], jobs: list[Submission]) -> str:
    """Return a table of runs, complete ones, jobs and node-hours, per arm and in total."""
    rows = arms(entries, jobs)
    total = Arm(
        "total",
        sum(row.runs for row in rows),
        sum(row.complete for row in rows),
        sum(row.jobs for row in rows),
        sum(row.node_hours for row in rows),
    )
    width = max(len(row.name) for row in [*rows, total])
    lines = [f"{'arm':<{width}}  {'runs':>6}{'complete':>10}{'jobs':>6}  node-hours at most"]
    lines += [
        f"{row.name:<{width}}  {row.runs:>6}{row.complete:>10}{row.jobs:>6}{row.node_hours:>20.1f}"
        for row in [*rows, total]
    ]
    return "\n".join(lines)


def submit(
    study: Study,
    tree: Tree,
    site: Site,
    options: Options,
    choice: Choice,
    *,
    data_dir: Path | None = None,
    show: Callable[[Submissions], None] = lambda plan: None,
) -> Iterator[tuple[Entry, str]]:
    """Submit what is left of a study; yield each run with the number of its job.

    `show` is called with what is about to be submitted. Jobs that SLURM holds because their start
    failed are released, and yielded too.

    Raises
    ------
    LaunchError
        If SLURM refuses a job (those before it are submitted), does not answer or is not there.
    SpecError, DataError, RecordError
        If an option, a run, the data or the place for results is wrong: nothing was submitted.
    """
    preflight.check_room(tree.root)
    lock = tree.study(study.name) / ".lock"
    with exclusive(lock, f"study {study.name!r}"):
        found = ledger(study, tree)
        queue = scheduler.queue()  # if it cannot be asked, nothing is submitted: it might be twice
        entries = settled(found, queue)
        for item in reconcile.release_held(entries, queue):
            yield item, str(item.job_id)
        plan = prepare(entries, site, options, queue, choice)
        show(plan)
        todo = [job.entry for job in plan.jobs]
        check_data(todo, tree, data_dir)
        write_plans(study, todo, tree, data_dir)
        numbers = {item.spec.run_id: item.job_id for item in plan.entries}
        for job in plan.jobs:
            after = numbers[job.after.spec.run_id] if job.after else None
            job_id = numbers[job.entry.spec.run_id] = _submit(job, after)
            yield job.entry, job_id


def _submit(job: Submission, after: str | None) -> str:
    """Submit one job, to start once job `after` has ended well."""
    directory = job.entry.directory
    files = RunFiles(directory)
    files.logs.mkdir(parents=True, exist_ok=True)  # SLURM makes no folder for its log
    write_atomically(files.script, job.script)
    before = read_record(directory)
    try:
        with scheduler.held(files.script, job.entry.spec.run_id, after) as job_id:
            changes = {"status": "submitted", "error": None, "job_id": job_id}
            write_record(directory, before.model_copy(update=changes))
    except LaunchError:
        with suppress(DDLError):
            write_record(directory, before)
        raise
    return job_id


def arm(spec: RunSpec) -> str:
    """Return what the runs of one curve have in common."""
    return f"{spec.strategy} {spec.loader} {spec.model}"


def small_first(
    entries: list[Entry], todo: list[Entry], queue: Queue | None
) -> tuple[list[Entry], dict[str, Entry]]:
    """Return what may be submitted, in order, and by run the smaller one that it waits for.

    A run on more nodes than the smallest of its arm waits for the first of these that is about to
    be submitted or in the queue. Where one of them is complete, nothing waits; where all have
    failed and are not tried again, the larger runs of the arm are left out.
    """
    order, waits = [], {}
    for item in sorted(todo, key=lambda one: one.spec.nodes):
        small = _smallest(item, entries)
        alive = [one for one in small if one in todo or queued(one, queue)]
        if item in small or any(one.state == "completed" for one in small):
            order.append(item)
        elif alive:
            order.append(item)
            waits[item.spec.run_id] = alive[0]
    return order, waits


def _smallest(item: Entry, entries: list[Entry]) -> list[Entry]:
    """Return the runs of an arm on the fewest nodes."""
    own = [one for one in entries if arm(one.spec) == arm(item.spec)]
    nodes = min(one.spec.nodes for one in own)
    return [one for one in own if one.spec.nodes == nodes]
