"""Hand what is left of a study to SLURM, a job per run or per block, and say what it may cost."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, RecordError
from ddl_core.files import cannot_write
from ddl_tools.launch import preflight
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.slurm.reconcile import settle
from ddl_tools.launch.slurm.script import JobPlan, block_name, render
from ddl_tools.launch.slurm.site import Site
from ddl_tools.launch.study import check_data, pending, read_runs, write_plans
from ddl_tools.names import describe, label, plural
from ddl_tools.processes import uninterrupted
from ddl_tools.records.identity import SERIES
from ddl_tools.records.ledger import Entry, exclusive
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.run import RunRecord, read_record, write_record
from ddl_tools.records.storage import require_plain, write_atomically
from ddl_tools.study import Study

if TYPE_CHECKING:
    from ddl_tools.launch.slurm.expected import Expected


def prepare(
    entries: list[Entry],
    site: Site,
    asked: JobPlan,
    *,
    retry_failed: bool = False,
    by_block: bool = False,
) -> list[JobPlan]:
    """Return the jobs of what a study still has to run, a job per run or per block of runs.

    They are checked and written nowhere. `asked` says what is asked for each of them.
    """
    asked.check(site)
    todo = pending(entries, retry_failed)
    for item in todo:
        preflight.check_batch(item.spec)
    plans = job_plans(todo, site, asked, by_block)
    for plan in plans:
        plan.check(site)
    return plans


def job_plans(
    todo: list[Entry], site: Site, asked: JobPlan, by_block: bool = False
) -> list[JobPlan]:
    """Return the jobs that execute some runs, unchecked: also to see what they may cost."""
    parts = blocks(todo, site) if by_block else [[item] for item in todo]
    return [asked.of(part) for part in parts]


def left_alone(entries: list[Entry], plans: list[JobPlan]) -> list[Entry]:
    """Return what is left of a study and in no plan: it failed or is damaged."""
    planned = {item.directory for plan in plans for item in plan.runs}
    return [item for item in pending(entries, retry_failed=True) if item.directory not in planned]


def blocks(items: list[Entry], site: Site) -> list[list[Entry]]:
    """Return some runs of a study as blocks, each in the order in which its job executes them.

    A block is what is left of one repeat and needs the same nodes: a slow node then slows all of
    its runs and cancels in their ratios. The order is drawn from the names of run and block.
    """
    found: dict[tuple[object, ...], list[Entry]] = {}
    for item in items:
        # On nodes with GPUs a job of runs on the CPU asks for none.
        key = (block_name("", item.spec), site.wants_gpus(item.spec))
        found.setdefault(key, []).append(item)
    return [sorted(block, key=_drawn) for block in found.values()]


def _drawn(item: Entry) -> str:
    seed = block_name(item.directory.parent.name, item.spec)
    return hashlib.sha256(f"{seed} {item.spec.run_id}".encode()).hexdigest()


def by_configuration(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Return the runs of each configuration of some runs, of all sizes, by its name.

    Configurations differ in more than their size.
    """
    names = label((item.spec for item in entries), SERIES)
    found: dict[str, list[Entry]] = {}
    for item, name in zip(entries, names, strict=True):
        about = item.spec.model_dump(include={"framework", "strategy", "loader", "model"})
        found.setdefault(name or describe(about), []).append(item)
    return found


def show_costs(
    entries: list[Entry],
    plans: list[JobPlan],
    site: Site,
    expected: Mapping[str, "Expected"] | None = None,
) -> str:
    """Return a table of runs, complete ones, jobs and node-hours, per configuration.

    Node-hours are those at most, and those of the runs whose time is `expected`, by run_id. The
    runs of a block have equal shares in its cost, and it counts as a job of each configuration.
    """
    found, head = by_configuration(entries), "configuration"
    width = max(map(len, (*found, head)))
    last = "  expected" if expected else ""
    lines = [f"{head:<{width}}  {'runs':>6}{'complete':>10}{'jobs':>6}  node-hours at most{last}"]
    for name, runs in (*found.items(), ("total", entries)):
        complete = sum(item.state == "completed" for item in runs)
        own = {item.directory for item in runs}
        shares = [(plan, sum(item.directory in own for item in plan.runs)) for plan in plans]
        number = sum(share > 0 for _, share in shares)
        most = sum(plan.node_hours(site) * share / len(plan.runs) for plan, share in shares)
        line = f"{name:<{width}}  {len(runs):>6}{complete:>10}{number:>6}{most:>20,.1f}"
        left = [item.spec for plan in plans for item in plan.runs if item.directory in own]
        lines.append(line + (_expected(left, expected) if expected else ""))
    return "\n".join(lines)


def _expected(specs: list[RunSpec], expected: Mapping[str, "Expected"]) -> str:
    """Return the expected node-hours of some runs, and of how many they are if not of all."""
    known = [one.machines * expected[one.run_id].hours for one in specs if one.run_id in expected]
    if not known:
        return f"{'–' if specs else '':>10}"
    part = "" if len(known) == len(specs) else f" ({len(known)} of {plural(len(specs), 'run')})"
    return f"{sum(known):>10,.1f}{part}"


def submit(
    study: Study,
    tree: Tree,
    site: Site,
    asked: JobPlan,
    *,
    retry_failed: bool = False,
    by_block: bool = False,
    data_dir: Path | None = None,
    show: Callable[[list[Entry], list[JobPlan]], None] = lambda entries, plans: None,
    warn: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[Entry, str]]:
    """Submit what is left of a study; yield each run with the number of its job.

    `show` is called with all runs, and with the jobs that are about to be submitted. At the end,
    `warn` is called with each difference between the queue and the scripts. If SLURM refuses a job,
    those before it are submitted.
    """
    preflight.check_room(tree.root)
    lock = tree.study(study.name) / ".lock"
    with exclusive(lock, f"study {study.name!r}"):
        # An error of the queue ends this: jobs must not be submitted twice.
        entries = settle(read_runs(study, tree, slurm_cli.queue))
        plans = prepare(entries, site, asked, retry_failed=retry_failed, by_block=by_block)
        show(entries, plans)
        todo = [item for plan in plans for item in plan.runs]
        check_data(todo, tree, data_dir)
        write_plans(study, todo, tree, data_dir)
        scripts = {}
        for plan in plans:
            job_id = submit_job(plan, site)
            scripts[job_id] = render(plan, site)
            for item in plan.runs:
                yield item, job_id
        for text in slurm_cli.differences(scripts):
            warn(text)


def submit_job(plan: JobPlan, site: Site) -> str:
    """Submit a job of planned runs; return its number.

    The records of its runs then name it; Ctrl-C waits for that.
    """
    first, *others = (RunFiles(item.directory) for item in plan.runs)
    script = render(plan, site)
    for files in (first, *others):
        require_plain(files.directory)
        files.logs.mkdir(parents=True, exist_ok=True)  # SLURM makes no folder for its log
        write_atomically(files.script, script)
    before = [read_record(item.directory) for item in plan.runs]
    with uninterrupted():  # else no record might name the job, and it would be submitted again
        job_id = slurm_cli.submit(first.script, script)
        try:
            for files in others:  # a job has one log, in the folder of its first run
                _link(files.logs / f"slurm-{job_id}.log", first.logs / f"slurm-{job_id}.log")
            for files, record in zip((first, *others), before, strict=True):
                _write_job(files, record, job_id)
        except RecordError as error:
            raise RecordError(
                f"job {job_id} is submitted, but not every record of its runs can say so: {error}; "
                f"cancel it with `scancel {job_id}` before the study is submitted again"
            ) from None
    return job_id


def _write_job(files: RunFiles, before: RunRecord, job_id: str) -> None:
    """Note the job of a run, unless the job has begun with it: what it wrote itself counts."""
    with suppress(LaunchError), exclusive(files.lock, f"run {before.run_id}"):
        if read_record(files.directory) == before:
            changes = {"status": "submitted", "error": None, "job_id": job_id}
            write_record(files.directory, before.model_copy(update=changes))


def _link(path: Path, target: Path) -> None:
    """Let `path` lead to `target`, also where all runs are moved together."""
    try:
        path.unlink(missing_ok=True)
        path.symlink_to(os.path.relpath(target, path.parent))
    except OSError as error:
        raise cannot_write(path, error) from error
