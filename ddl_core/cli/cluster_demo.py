"""``make cluster-demo``: a study through a real SLURM of emulated nodes on this machine.

Starts the SLURM, submits what is left of the study, shows what changes until no job is left, stops
the SLURM and draws the figures. Ctrl-C stops all of it; a second call goes on with what is left.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from ddl_core.cli.options import (
    dry_run_option,
    results_option,
    show_entries,
    tree_of,
    warn_of_disagreement,
)
from ddl_core.cli.submit import submit
from ddl_core.errors import STOPPED, DDLError, LaunchError
from ddl_core.records.ledger import Entry, ledger
from ddl_core.records.paths import Tree
from ddl_core.spec.study import Study

SITE = "localtest"
STUDY = "cluster_demo"
EVERY_S = 2.0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="[STUDY]", default=STUDY)
@click.option("--nodes", default=4, show_default=True, help="Emulated nodes.")
@results_option
@dry_run_option
def demo(name: str, nodes: int, root: Path | None, dry_run: bool) -> None:
    """Run STUDY through a private SLURM on this machine and draw its figures.

    The default is studies/cluster_demo.yaml. Nothing on this machine is changed but the results.
    """
    from ddl_core.launch.plan import find_study
    from ddl_core.launch.study import summary

    asked, tree = find_study(name), tree_of(root)
    if dry_run:
        click.echo(f"would start a SLURM of {nodes} nodes and submit what is not complete of:")
        click.echo(show_entries(ledger(asked, tree)))
        return
    _through_slurm(name, asked, tree, nodes)
    entries = ledger(asked, tree)
    click.echo(summary(entries))
    warn_of_disagreement(entries)
    _draw(tree)
    if unfinished := sum(item.state != "completed" for item in entries):
        raise LaunchError(
            f"{unfinished} of {len(entries)} runs are not complete; what their jobs printed is in "
            f"logs/ of each run's folder below {tree.study(asked.name)}; try them again with: "
            "make cluster-demo"
        )


def _through_slurm(name: str, study: Study, tree: Tree, nodes: int) -> None:
    from ddl_core.launch.slurm.emulated import running

    click.echo(f"starting a SLURM of {nodes} emulated nodes")
    with running(nodes) as cluster:
        environment = cluster.environment()
        os.environ.clear()
        os.environ.update(environment)
        click.echo(cluster.call("sinfo").rstrip())
        words = [name, "--site", SITE, "--retry-failed", "--results", str(tree.root)]
        submit.main(words, "ddl study submit", standalone_mode=False)
        for line in follow(study, tree):
            click.echo(line)
    click.echo("stopped the SLURM")


def follow(study: Study, tree: Tree) -> Iterator[str]:
    """Yield a line whenever a run has another state or another phase, until no job is left."""
    from ddl_core.launch.slurm import reconcile, scheduler

    shown: dict[str, str] = {}
    while True:
        queue = scheduler.queue()
        for item in reconcile.joined(ledger(study, tree), queue):
            key, line = _line(item)
            if shown.get(item.spec.run_id) != key:
                shown[item.spec.run_id] = key
                yield line
        if not queue:
            return
        time.sleep(EVERY_S)


def _line(item: Entry) -> tuple[str, str]:
    """Return what has to change for a run to be shown again, and what is then shown."""
    from ddl_core.records.progress import describe, read_progress

    key: str = item.state
    text = item.reason.partition("\n")[0]
    progress = read_progress(item.directory)
    if item.state == "running":
        text += f"  {describe(progress)}"
        key += f" {progress['phase']} {progress['epoch']}" if progress else ""
    return key, f"{time.strftime('%H:%M:%S')}  {item.state:<11} {item.spec.run_id}  {text}".rstrip()


def _draw(tree: Tree) -> None:
    from ddl_core.analysis import redraw

    drawn = redraw(tree, figures=tree.figures)
    click.echo(f"{len(drawn)} files in {tree.figures}; records in {tree.runs}")


def main() -> None:
    """Execute the command; Ctrl-C and a request to end stop it in order."""
    from ddl_core.processes import stoppable

    try:
        with stoppable():
            demo.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except DDLError as error:
        sys.exit(f"Error: {error}")
    except (KeyboardInterrupt, click.Abort):
        click.echo("stopped, with the SLURM; go on with: make cluster-demo", err=True)
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()
