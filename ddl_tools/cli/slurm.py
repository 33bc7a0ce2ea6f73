"""``ddl study submit`` and ``ddl study cancel``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddl_core.errors import DDLError, SpecError
from ddl_core.files import some
from ddl_tools.cli import options as common
from ddl_tools.cli.output import say, say_json, say_next
from ddl_tools.names import Names, named, plural
from ddl_tools.records.ledger import Entry, ledger
from ddl_tools.records.paths import RunFiles, Tree, results_words
from ddl_tools.study import Study

if TYPE_CHECKING:
    from ddl_tools.launch.slurm.script import JobPlan
    from ddl_tools.launch.slurm.site import Site


@click.command("submit")
@common.study_argument
@common.site_option(
    "Machine: the name of a file in slurm/ (generic for slurm/generic.toml), or a path.",
    required=True,
)
@common.account_option
@common.partition_option
@click.option(
    "--time",
    metavar="HH:MM:SS",
    help="Time limit of each job. [default: the site's; of a block the sum of its runs']",
)
@click.option(
    "--by",
    type=common.Name(["run", "block"]),
    default="run",
    help="One job per run; or one per block: all runs of a repeat that need the same "
    "nodes, in random order, so that they share slow nodes.",
)
@click.option("--retry-failed", is_flag=True, help="Also run again what failed.")
@click.option(
    "--max-node-hours",
    type=common.Number(),
    default=10_000.0,
    metavar="N",
    help="Refuse to submit if the jobs may cost more.",
)
@click.option(
    "--all-scripts",
    is_flag=True,
    help="With --dry-run, print the script of each job. [default: of the first]",
)
@common.data_option
@common.results_option
@common.dry_run_option
@common.json_option
def submit_command(
    definition: Study,
    site_name: str,
    account: str | None,
    partition: str | None,
    time: str | None,
    by: str,
    retry_failed: bool,
    max_node_hours: float,
    all_scripts: bool,
    data_dir: Path | None,
    tree: Tree,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Submit the missing runs of a study to SLURM, one job per run or per block of runs.

    A later call submits only missing and interrupted runs; completed, running and queued runs are
    left alone. --dry-run shows the first script, the maximum node-hours, and what runs are expected
    to take if their rate is known.
    """
    from ddl_tools.cli import answers
    from ddl_tools.launch.plan_notes import commands, open_ports, prefixes
    from ddl_tools.launch.slurm import expected, reconcile, slurm_cli
    from ddl_tools.launch.slurm import submit as core
    from ddl_tools.launch.slurm.script import JobPlan, render
    from ddl_tools.launch.slurm.site import find_site
    from ddl_tools.launch.study import check_data, check_images

    site, asked = find_site(site_name), JobPlan(account, partition, time)
    by_block = by == "block"
    names = named(definition.expand())
    if definition.interleave and not by_block:
        say("jobs do not interleave: with --by block, the runs of a repeat share a job", err=True)

    def show(entries: list[Entry], plans: list[JobPlan]) -> None:
        specs = [item.spec for item in entries]
        for note in filter(None, (prefixes(specs), commands(specs))):
            say(note, err=True)
        common.warn(open_ports([item.spec for plan in plans for item in plan.runs], site))
        for note in slurm_cli.notes(render(plans[0], site)) if plans else ():
            say(note, err=True)
        images = check_images(entries, tree, data_dir)
        costs, slow = expected.show(entries, plans, site_name, site, tree, images)
        if as_json:
            found.extend(answers.jobs(plans, site_name, site, tree, images, render))
        else:
            _show_plans(entries, plans, site, names)
            say(costs)
        common.warn(slow)
        hours = sum(plan.node_hours(site) for plan in plans)
        if hours > max_node_hours:
            raise SpecError(
                f"these jobs may cost {hours:,.0f} node-hours, more than --max-node-hours "
                f"{max_node_hours:,.0f}; if that is meant, name as many there; else lower nodes, "
                "repeats or --time"
            )

    def answer() -> None:
        if as_json:
            hours = sum(one.node_hours_at_most for one in found)
            made = {"study": definition.name, "site": site_name, "dry_run": dry_run}
            say_json(answers.StudySubmit(**made, jobs=found, node_hours_at_most=hours))

    found: list[answers.Job] = []
    if not dry_run:
        submitted = core.submit(
            definition,
            tree,
            site,
            asked,
            retry_failed=retry_failed,
            by_block=by_block,
            data_dir=data_dir,
            show=show,
            warn=common.warn,
        )
        try:
            for item, job_id in submitted:
                for job in found:
                    job.job_id = job_id if item.spec.run_id in job.runs else job.job_id
                if not as_json:
                    say(f"{job_id}  {names[item.spec.run_id]}")
        except DDLError:
            if any(job.job_id for job in found):
                answer()
            raise
        answer()
        if not as_json:
            words = ["status", common.study_word(), "--watch", *results_words(tree)]
            say_next(["ddl", "study", *words])
        return
    entries = ledger(definition, tree)
    jobs = reconcile.numbers(one for one in reconcile.presumed(entries) if one.queued)
    if jobs:
        say(
            f"dry run: SLURM's queue was not read; runs of {plural(len(jobs), 'job')} "
            f"({some(jobs)}) may still wait or train there",
            err=True,
        )
    plans = core.prepare(entries, site, asked, retry_failed=retry_failed, by_block=by_block)
    shown = plans if all_scripts else plans[:1]
    for plan in () if as_json else shown:
        say(f"# {RunFiles(plan.runs[0].directory).script}")
        say(render(plan, site))
    if (more := len(plans) - len(shown)) and not as_json:
        say(f"# {plural(more, 'more script')}; --all-scripts prints them\n")
    with common.warning("nothing would be submitted"):
        show(entries, plans)
    answer()
    with common.warning("nothing could be submitted now"):
        check_data([item for plan in plans for item in plan.runs], tree, data_dir)


def _show_plans(entries: list[Entry], plans: "list[JobPlan]", site: "Site", names: Names) -> None:
    from ddl_tools.launch.slurm.site import clock
    from ddl_tools.launch.slurm.submit import left_alone

    bad = [item for item in entries if item.state in ("failed", "interrupted", "damaged")]
    if bad:
        say("\n".join([common.show_entries(bad), *common.log_of_unstarted(bad)]))
    if failed := left_alone(entries, plans):
        say(
            f"not submitted: {len(failed)} failed or damaged, see above; "
            "--retry-failed submits them again"
        )
    for plan in plans:
        name, runs = plan.name.removeprefix("ddl-"), [names[one.spec.run_id] for one in plan.runs]
        if len(runs) > 1:
            say(f"{name}: {len(runs)} runs in {clock(plan.limit_s(site))}, in this order:")
            say("\n".join(f"  {run}" for run in runs))


@click.command("cancel")
@common.study_argument
@click.option(
    "--run", "run_ids", multiple=True, metavar="ID", help="Cancel only this run; repeatable."
)
@common.results_option
@common.dry_run_option
def cancel_command(definition: Study, run_ids: tuple[str, ...], tree: Tree, dry_run: bool) -> None:
    """Cancel the SLURM jobs of a study; you can submit its runs again.

    Completed runs stay complete. To stop a run on this machine, press Ctrl-C where you started it.
    """
    from ddl_tools.launch.slurm import reconcile as core
    from ddl_tools.launch.slurm import slurm_cli
    from ddl_tools.launch.study import read_runs

    if dry_run:
        entries = core.presumed(ledger(definition, tree))
    else:
        entries = read_runs(definition, tree, slurm_cli.queue)
    found, names = core.jobs_of(entries, run_ids), named(item.spec for item in entries)
    if not dry_run:
        core.cancel(found)
    for item in found:
        done = "would cancel, if in the queue:" if dry_run else "cancelled"
        say(f"{done}  {names[item.spec.run_id]}  {item.reason}")
    if not found:
        say(
            "none of these runs has an open job in its record"
            if dry_run
            else "none of these runs has a job in SLURM's queue"
        )
