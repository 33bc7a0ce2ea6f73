"""``ddl study submit`` and ``ddl study cancel``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddl_core.errors import SpecError
from ddl_tools.cli.options import (
    ask_queue,
    data_option,
    dry_run_option,
    results_option,
    site_option,
    study_argument,
    tree_of,
    warning,
)
from ddl_tools.labels import Names, named
from ddl_tools.records.ledger import ledger
from ddl_tools.records.paths import RunFiles

if TYPE_CHECKING:
    from ddl_tools.launch.slurm.submit import Submissions

MOST_NODE_HOURS = 10_000.0  # what nobody asks for by a mistyped number


@click.command()
@study_argument
@site_option(
    "Machine: the name of a file in slurm/ (generic for slurm/generic.toml), or a path.",
    required=True,
)
@click.option("--account", metavar="PROJECT", help="Project that is billed.")
@click.option("--partition", metavar="NAME", help="[default: the site's]")
@click.option(
    "--time",
    metavar="HH:MM:SS",
    help="Limit of each job. [default: the site's; of a block the sum of its runs']",
)
@click.option(
    "--by",
    type=click.Choice(["run", "block"]),
    default="run",
    show_default=True,
    help="One job per run; or one for all runs of a repeat that need the same nodes, one after the "
    "other in random order on the same nodes, so that differences between nodes cancel.",
)
@click.option("--retry-failed", is_flag=True, help="Also run again what failed.")
@click.option(
    "--small-first",
    is_flag=True,
    help="Let the larger runs of an arm wait until one on its fewest nodes is complete.",
)
@click.option(
    "--most-node-hours",
    type=click.FloatRange(0),
    default=MOST_NODE_HOURS,
    show_default=True,
    metavar="N",
    help="Refuse to submit what may cost more.",
)
@data_option
@results_option
@dry_run_option
def submit(
    name: str,
    site_name: str,
    account: str | None,
    partition: str | None,
    time: str | None,
    by: str,
    retry_failed: bool,
    small_first: bool,
    most_node_hours: float,
    data_dir: Path | None,
    root: Path | None,
    dry_run: bool,
) -> None:
    """Submit what a study has not run yet to SLURM, one job per run or per block of runs.

    Again later, it submits only what is missing or was stopped: what is complete, at work or in the
    queue is left alone. With --dry-run: show the scripts, and how many node-hours they may cost at
    most.
    """
    from ddl_tools.launch.plan import check_data, find_study
    from ddl_tools.launch.slurm import submit as core
    from ddl_tools.launch.slurm.reconcile import joined
    from ddl_tools.launch.slurm.script import Options
    from ddl_tools.launch.slurm.site import find_site

    asked, tree, site = find_study(name), tree_of(root), find_site(site_name)
    options = Options(account, partition, time)
    choice = core.Choice(retry_failed, small_first, by_block=by == "block")
    names = named(asked.expand())

    def show(plan: "Submissions") -> None:
        _show_plan(plan, names)
        hours = sum(job.node_hours for job in plan.jobs)
        if hours > most_node_hours:
            raise SpecError(
                f"these jobs may cost {hours:,.0f} node-hours, more than --most-node-hours "
                f"{most_node_hours:,.0f}; if that is meant, name as many there; else lower nodes, "
                "repeats or --time"
            )

    if not dry_run:
        submitted = core.submit(asked, tree, site, options, choice, data_dir=data_dir, show=show)
        for item, job_id in submitted:
            click.echo(f"{job_id}  {names[item.spec.run_id]}")
        return
    entries, queue = ledger(asked, tree), ask_queue()
    plan = core.prepare(joined(entries, queue), site, options, queue, choice)
    for job in plan.jobs:
        click.echo(f"# {RunFiles(job.entries[0].directory).script}")
        click.echo(job.script)
    with warning("nothing would be submitted"):
        show(plan)
    with warning("nothing could be submitted now"):
        check_data([item for job in plan.jobs for item in job.entries], tree, data_dir)


def _show_plan(plan: "Submissions", names: Names) -> None:
    from ddl_tools.launch.slurm.site import clock
    from ddl_tools.launch.slurm.submit import show_costs

    click.echo(show_costs(plan.entries, plan.jobs))
    for job in plan.jobs:
        name = job.name.removeprefix("ddl-")
        if len(job.entries) > 1:
            click.echo(f"{name}: {len(job.entries)} runs in {clock(job.limit_s)}, in this order:")
            click.echo("".join(f"  {names[item.spec.run_id]}\n" for item in job.entries), nl=False)
        if job.after:
            click.echo(
                f"{name} waits for {', '.join(names[item.spec.run_id] for item in job.after)}"
            )
    for item in plan.left_out:
        click.echo(
            f"not submitted: {names[item.spec.run_id]}: the smallest runs of its arm have failed; "
            "try them again with --retry-failed, or leave --small-first out"
        )


@click.command()
@study_argument
@click.option(
    "--run", "run_ids", multiple=True, metavar="ID", help="Only this run; may be given repeatedly."
)
@results_option
@dry_run_option
def cancel(name: str, run_ids: tuple[str, ...], root: Path | None, dry_run: bool) -> None:
    """Cancel the SLURM jobs of a study; its runs can be submitted again and go on.

    What is complete stays complete. A run at work on this machine has no job: press Ctrl-C where it
    was started.
    """
    from ddl_tools.launch.plan import find_study
    from ddl_tools.launch.slurm import reconcile as core

    asked, tree = find_study(name), tree_of(root)
    entries = ledger(asked, tree)
    found, names = core.jobs_of(entries, run_ids), named(item.spec for item in entries)
    if not dry_run:
        core.cancel(found)
    for item in found:
        done = "would cancel" if dry_run else "cancelled"
        click.echo(f"{done}  {names[item.spec.run_id]}  {item.reason}")
    if not found:
        click.echo("none of these runs has a job in SLURM's queue")
