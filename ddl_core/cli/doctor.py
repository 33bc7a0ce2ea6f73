"""``ddl doctor``: what is here, what stands in the way of a run, and what to do about it."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from ddl_core.cli.options import FOLDER, data_option, dry_run_option, results_option, tree_of
from ddl_core.records.paths import Tree

if TYPE_CHECKING:
    from ddl_core.doctor.examination import Report

NOT_READY = 1
SECONDS_PER_MINUTE = 60


@click.command()
@click.option("--site", "site_name", metavar="SITE",
              help="Machine to submit to: a name from slurm/, or a path.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(1), metavar="N",
              help="Start so many ranks on each node and probe what lies between them. "
              "[default: with --site its GPUs of a node, else none]")  # fmt: skip
@click.option("--nodes", type=click.IntRange(1), metavar="N",
              help="Nodes to probe. [default: 2 of a site]")  # fmt: skip
@click.option("--loader-workers", type=click.IntRange(0), default=8, show_default=True,
              help="Loader processes of each rank, as in the study.")  # fmt: skip
@click.option("--data-format", type=click.Choice(["folder", "tfrecord"]), default="folder",
              show_default=True, help="What the data folder holds.")  # fmt: skip
@click.option("--account", metavar="PROJECT", help="Project that is billed.")
@click.option("--partition", metavar="NAME", help="[default: the site's]")
@click.option("--time", metavar="HH:MM:SS", help="Limit of the probe's job. [default: 00:10:00]")
@click.option("--wait", "wait_min", type=click.FloatRange(0), default=15.0, show_default=True,
              metavar="MINUTES", help="How long to wait for the job.")  # fmt: skip
@click.option("--show", type=FOLDER, metavar="DIR", help="Only report on the probe in DIR.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@data_option
@results_option
@dry_run_option
def doctor(
    site_name: str | None,
    show: Path | None,
    as_json: bool,
    root: Path | None,
    dry_run: bool,
    **request: Any,
) -> None:
    """Say what is installed, what stands in the way of a run, and what to do about it.

    Without --site: of this machine. With --site, on a login node: the site's file against SLURM,
    modules, data, caches; then a short job whose ranks look at their cores, devices, interfaces and
    data, and time the all-reduce between them. Exit code 1 if something is bad.
    """
    from ddl_core.doctor import examination

    _refuse_unused(site_name, **request)
    tree = tree_of(root)
    if show:
        report = examination.show(show)
    else:
        with _progress() as on_state:
            asked = _request(site_name, dry_run, **request)
            report = examination.examine(asked, tree, on_state)
    _print(report, as_json, f"Ready for {site_name}" if site_name else None, show)
    if report.directory and not show:
        _draw(tree, report.directory, as_json)
    if any(one.state == "bad" for one in report.findings):
        sys.exit(NOT_READY)


def _refuse_unused(
    site_name: str | None, ranks: int | None, nodes: int | None, **options: Any
) -> None:
    """Refuse what would be passed over: without a site there is no job."""
    given = [name for name in ("account", "partition", "time") if options[name] is not None]
    if nodes is not None and ranks is None:
        given.append("nodes")
    if given and site_name is None:
        raise click.UsageError(f"--{given[0]} is for a job; name its machine with --site as well")


def _request(
    site_name: str | None,
    dry_run: bool,
    account: str | None,
    partition: str | None,
    time: str | None,
    wait_min: float,
    **rest: Any,
) -> Any:
    from ddl_core.doctor.examination import JOB_TIME, Request
    from ddl_core.launch.slurm.script import Options

    return Request(
        site_name=site_name,
        dry_run=dry_run,
        options=Options(account, partition, time or JOB_TIME),
        patience_s=wait_min * SECONDS_PER_MINUTE,
        **rest,
    )


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done, and for how long."""
    with tqdm(bar_format="{desc} [{elapsed}]", leave=False, disable=None) as bar:
        yield bar.set_description_str


def _print(report: "Report", as_json: bool, ready: str | None, show: Path | None) -> None:
    from ddl_core.doctor.finding import subjects, text

    lacking = subjects(report.findings, "bad")
    if as_json:
        content = {"ready": not lacking, "findings": [asdict(one) for one in report.findings]}
        click.echo(json.dumps(content, indent=1))
        return
    if report.would_start:
        click.echo(f"would start:\n{report.would_start}\n")
    click.echo(text(report.findings))
    if not show:
        unclear = subjects(report.findings, "unknown")
        verdict = f"as far as is known, but not: {', '.join(unclear)}" if unclear else "yes"
        verdict = f"no: {', '.join(lacking)}" if lacking else verdict
        click.echo(f"\n{ready or 'The laptop study can run here'}: {verdict}")


def _draw(tree: Tree, directory: Path, as_json: bool) -> None:
    from ddl_core.analysis.redraw import redraw_probes
    from ddl_core.records.paths import ProbeFiles

    drawn = redraw_probes(tree, figures=tree.figures)
    if not as_json:
        click.echo(f"record: {ProbeFiles(directory).record}")
        for path in drawn:
            if path.suffix == ".png":
                click.echo(f"figure: {path}")
