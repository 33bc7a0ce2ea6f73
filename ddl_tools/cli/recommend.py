"""``ddl recommend``."""

import sys
from pathlib import Path
from typing import Any

import click

from ddl_core.errors import STOPPED, FairnessError, Interrupted
from ddl_tools.cli import options as common
from ddl_tools.records.paths import Tree


def _numbers(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in (text or "").split(",") if part)
    except ValueError:
        found = (0,)
    if any(one < 1 for one in found):
        raise click.BadParameter(f"{text!r} is not a list of whole numbers above 0, as 1,2,4")
    return found


@click.command()
@click.option("--model", default="resnet50", help="Network, as of `ddl run`.")
@common.data_option
@click.option("--minutes", type=common.Number(1, 10**6), metavar="N",
              help="Time limit. [default: 10; with --site 5, of each run]")  # fmt: skip
@click.option("--workers", metavar="N,N,...", callback=_numbers,
              help="Numbers of ranks to try. [default: 1, 2, 4, ... up to the GPUs, else cores]"
              )  # fmt: skip
@click.option("--epochs", type=click.IntRange(1, 10**6), default=90, metavar="N",
              help="Epochs of the whole training, for its time.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 10**6), metavar="N",
              help="Images per rank and step. [default: 64 on a GPU, 8 on a CPU]")  # fmt: skip
@click.option("--image-size", type=click.IntRange(8, 4096), default=224, metavar="N",
              help="Side of the training crop (pixels).")  # fmt: skip
@common.site_option("Measure in SLURM jobs on 1, 2 and 4 nodes: a name from slurm/, or a path.")
@common.account_option
@common.partition_option
@click.option("--max-node-hours", type=common.Number(), metavar="N",
              help="With --site: limit of all jobs, by their time limits. [default: 10]"
              )  # fmt: skip
@common.results_option
@common.dry_run_option
def recommend(
    data_dir: Path | None,
    minutes: float | None,
    site_name: str | None,
    account: str | None,
    partition: str | None,
    max_node_hours: float | None,
    tree: Tree,
    dry_run: bool,
    **request: Any,
) -> None:
    """Measure what is installed here, and say how to train a network on your images.

    Tries strategies, loaders, numbers of ranks and a few settings with interleaved short epochs.
    It drops what is slower with confidence, and spends the rest of the time on what is left.
    Prints ten lines: the configuration, its throughput, what is equivalent, what limits it, and
    the command that starts the training. Ctrl-C ends it with what is known; the same command goes
    on.

    With --site, each call shows the state, the node-hours and the jobs that it submits, in at most
    two rounds. The last call answers, with a forecast for at most four times as many nodes.
    """
    from ddl_tools.launch.slurm.script import Options
    from ddl_tools.recommend.answer import Answer
    from ddl_tools.recommend.candidates import Request, plan_text
    from ddl_tools.recommend.search import Search
    from ddl_tools.recommend.site import SiteAnswer, SiteSearch

    if not site_name and (account or partition or max_node_hours is not None):
        raise click.UsageError(
            "--account, --partition and --max-node-hours are of SLURM jobs; name a --site"
        )
    max_node_hours = 10.0 if max_node_hours is None else max_node_hours
    data_dir, minutes = data_dir or tree.dataset("sample"), minutes or (5 if site_name else 10)
    asked = Request(data_dir=data_dir.resolve(), minutes=minutes, **request)
    answer: Answer
    if site_name:
        on_site = SiteSearch(asked, tree, site_name, Options(account, partition), max_node_hours)
        click.echo(plan_text(asked, on_site.space))
        if not on_site.proceed(click.echo, dry_run) or dry_run:
            return
        answer = SiteAnswer(on_site)
    else:
        search = Search(asked, tree)
        click.echo(plan_text(asked, search.space))
        if dry_run:
            return
        search.run()
        try:
            answer = Answer(search)
        except Interrupted as error:
            click.echo(error, err=True)
            sys.exit(STOPPED)
    picture = answer.write()
    if answer.alarm:
        click.secho(answer.alarm, fg="red", bold=True, err=True)
    click.echo("\n" + "\n".join(answer.lines))
    if picture:
        click.echo(f"figure: {picture}", err=True)
    if answer.alarm:
        raise FairnessError("the weights of some strategies differ, see above")
    if answer.search.stopped:
        sys.exit(STOPPED)
