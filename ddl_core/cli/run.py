"""``ddl run``."""

import re
from pathlib import Path
from typing import Any

import click

from ddl_core.cli.options import data_option, dry_run_option, results_option, spec_options, tree_of
from ddl_core.records.ledger import entry
from ddl_core.records.paths import RunFiles
from ddl_core.spec.run import RunSpec

STUDY_NAME = r"[a-z0-9_]+"  # becomes a folder


def _checked_name(context: click.Context, option: click.Parameter, value: str) -> str:
    if not re.fullmatch(STUDY_NAME, value):
        raise click.BadParameter(f"{value!r} is not made of small letters, digits and _ only")
    return value


@click.command()
@spec_options
@click.option(
    "--study",
    "study_name",
    default="adhoc",
    show_default=True,
    metavar="NAME",
    callback=_checked_name,
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
    from ddl_core.launch import local, plan, preflight, ranks

    spec = RunSpec.parse(fields)
    tree = tree_of(root)
    directory = tree.study(study_name) / spec.run_id
    files = RunFiles(directory)
    if dry_run:
        click.echo(f"{entry(spec, directory).state}: {directory}")
        click.echo(str(ranks.command(spec, directory, files.logs)))
        return
    preflight.check_run(spec)
    preflight.check_room(directory)
    plan.check_data([entry(spec, directory)], tree, data_dir)
    plan.plan_run(spec, study_name, tree, data_dir)
    click.echo(spec.run_id)
    local.run_one(directory)
    click.echo(f"completed; its lab book is {files.notebook}")
