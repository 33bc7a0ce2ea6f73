"""Hand what is left of a study to SLURM, one job per run, and say what that may cost at most."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddl_core.errors import DDLError, LaunchError
from ddl_core.launchers import preflight, slurm
from ddl_core.launchers.sbatch import Options, Place, render, requeues
from ddl_core.launchers.site import Site
from ddl_core.launchers.study import check_data, pending, write_plans
from ddl_core.ledger import Entry, exclusive, ledger
from ddl_core.paths import PROJECT, RunFiles, Tree
from ddl_core.records import read_record, write_atomically, write_record
from ddl_core.spec import RunSpec, Study

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Job:
    """A run that is to be submitted, with its script."""

    entry: Entry
    script: str
    node_hours: float


@dataclass(frozen=True)
class Arm:
    """What one arm of a study may cost at most."""

    name: str
    runs: int
    complete: int
    jobs: int
    node_hours: float


def prepare(
    study: Study,
    tree: Tree,
    site: Site,
    options: Options,
    queue: slurm.Queue | None,
    *,
    retry_failed: bool = False,
) -> tuple[list[Entry], list[Job]]:
    """Return the ledger of a study, and the jobs of what it still has to run; write nothing.

    What is complete, at work, or in `queue` has no job; nor has what failed, unless
    `retry_failed`.

    Raises
    ------
    SpecError
        If an option or a run does not fit the site.
    """
    options.check(site)
    entries = slurm.joined(ledger(study, tree), queue)
    todo = pending(entries, retry_failed)
    for item in todo:
        preflight.check_batch(item.spec)
    return entries, [_job(item, site, options) for item in todo]


def _job(item: Entry, site: Site, options: Options) -> Job:
    place = Place(item.directory, PROJECT, sys.executable)
    text = render(item.spec, site, options, place)
    return Job(item, text, node_hours(item.spec, site, options))


def node_hours(spec: RunSpec, site: Site, options: Options) -> float:
    """Return what a run may cost at most: nodes x time limit x starts, in hours."""
    starts = 1 + requeues(spec, site)
    return spec.nodes * starts * options.limit_s(site) / SECONDS_PER_HOUR


def arms(entries: list[Entry], jobs: list[Job]) -> list[Arm]:
    """Return the cost of each arm (strategy, loader, model), in order of appearance."""
    found = []
    for name in dict.fromkeys(_arm(item.spec) for item in entries):
        own = [item for item in entries if _arm(item.spec) == name]
        hours = [job.node_hours for job in jobs if _arm(job.entry.spec) == name]
        complete = sum(item.state == "completed" for item in own)
        found.append(Arm(name, len(own), complete, len(hours), sum(hours)))
    return found


def _arm(spec: RunSpec) -> str:
    return f"{spec.strategy} {spec.loader} {spec.model}"


def show_costs(entries: list[Entry], jobs: list[Job]) -> str:
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
    *,
    retry_failed: bool = False,
    data_dir: Path | None = None,
) -> Iterator[tuple[Entry, str]]:
    """Submit what is left of a study; yield each run with the number of its job.

    So are jobs that SLURM holds because their start failed: they are released.

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
        queue = slurm.queue()  # if it cannot be asked, nothing is submitted: it might be twice
        for item in slurm.release_held(ledger(study, tree), queue):
            yield item, str(item.job_id)
        _, jobs = prepare(study, tree, site, options, queue, retry_failed=retry_failed)
        todo = [job.entry for job in jobs]
        check_data(todo, tree, data_dir)
        write_plans(study, todo, tree, data_dir)
        for job in jobs:
            yield job.entry, _submit(job)


def _submit(job: Job) -> str:
    """Submit one job.

    Held at first: a job that starts at once would write the record while this process does.
    """
    directory = job.entry.directory
    files = RunFiles(directory)
    files.logs.mkdir(parents=True, exist_ok=True)  # SLURM makes no folder for its log
    write_atomically(files.script, job.script)
    job_id = slurm.hold(files.script)
    before = read_record(directory)
    try:
        changes = {"status": "submitted", "error": None, "job_id": job_id}
        write_record(directory, before.model_copy(update=changes))
        slurm.release(job_id)
    except DDLError as error:
        with suppress(DDLError):
            slurm.cancel(job_id)
        with suppress(DDLError):
            write_record(directory, before)
        name = job.entry.spec.run_id
        raise LaunchError(f"job {job_id} of {name} was cancelled again: {error}") from None
    return job_id
