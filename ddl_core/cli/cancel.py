"""``ddl study cancel``."""

from pathlib import Path

import click

from ddl_core.cli.options import dry_run_option, results_option, tree_of
from ddl_core.records.ledger import ledger


@click.command()
@click.argument("name", metavar="STUDY")
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
    from ddl_core.launch.slurm import cancel as core
    from ddl_core.launch.study import find_study

    asked, tree = find_study(name), tree_of(root)
    found = core.jobs_of(ledger(asked, tree), run_ids)
    if not dry_run:
        core.cancel(found)
    for item in found:
        done = "would cancel" if dry_run else "cancelled"
        click.echo(f"{done}  {item.spec.run_id}  {item.reason}")
    if not found:
        click.echo("none of these runs has a job in SLURM's queue")
