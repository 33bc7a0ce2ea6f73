"""``ddl run``."""

from pathlib import Path
from typing import Any

import click

from ddl_core.cli.options import (
    checked_name,
    command_of,
    data_option,
    dry_run_option,
    results_option,
    spec_options,
    tree_of,
)
from ddl_core.emulation import validity
from ddl_core.errors import SpecError
from ddl_core.records.asked import kept, specs
from ddl_core.records.ledger import entry
from ddl_core.records.paths import RunFiles, Tree
from ddl_core.records.run import read_epochs
from ddl_core.spec.run import RunSpec
from ddl_core.spec.study import ADHOC


@click.command()
@spec_options
@click.option(
    "--study",
    "study_name",
    default=ADHOC,
    show_default=True,
    metavar="NAME",
    callback=checked_name,
    help="Folder the run is kept under.",
)
@data_option
@results_option
@dry_run_option
def run(
    study_name: str, data_dir: Path | None, root: Path | None, dry_run: bool, **fields: Any
) -> None:
    """Train once and record how fast it was.

    For a first try:  ddl run --model resnet18 --loader synthetic --image-size 32
    --train-images 640 --eval-images 64 --local-batch-size 32 --epochs 3
    """
    from ddl_core.analysis import metrics
    from ddl_core.launch import local, plan, preflight

    spec = RunSpec.parse(fields)
    tree = tree_of(root)
    directory = tree.study(study_name) / spec.run_id
    files = RunFiles(directory)
    preflight.check_run(spec)
    _check_study(study_name, spec, tree)
    if dry_run:
        click.echo(f"{entry(spec, directory).state}: {directory}")
        click.echo(command_of(spec, directory))
        return
    preflight.check_room(directory)
    plan.check_data([entry(spec, directory)], tree, data_dir)
    plan.plan_run(spec, study_name, tree, data_dir)
    click.echo(spec.run_id)
    if note := plan.without_throughput([spec]):
        click.echo(note)
    record = local.run_one(directory)
    click.echo(f"completed: {metrics.told(read_epochs(directory))}")
    for warning in validity.warnings([record]):
        click.echo(warning)
    click.echo(f"its lab book is {files.notebook}")


def _check_study(name: str, spec: RunSpec, tree: Tree) -> None:
    """Refuse to put a run among those of a study that does not plan it: no figure would show it."""
    study = kept(name, tree)
    if study and spec.run_id not in {run.run_id for run in specs(study, tree)}:
        raise SpecError(
            f"study {name!r} in {tree.runs} does not plan this run; choose another name with "
            "--study, or add the run to the study's file"
        )
