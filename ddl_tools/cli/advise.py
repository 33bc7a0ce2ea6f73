"""``ddl advise``."""

from pathlib import Path

import click

from ddl_core.registry import MODELS
from ddl_tools.cli.options import FILE, FOLDER
from ddl_tools.records.paths import Tree, committed

_ABOVE_0 = click.FloatRange(min=0, min_open=True)


@click.command()
@click.option("--site", "site_name", metavar="SITE",
              help="Machine: a name from slurm/, or a path. [default: this one]")  # fmt: skip
@click.option("--model", type=click.Choice(sorted(MODELS)), default="resnet50",
              help="Network.")  # fmt: skip
@click.option("--dataset", metavar="NAME", default="imagenet",
              help="Data set, as records name it.")  # fmt: skip
@click.option("--images", type=click.IntRange(1), metavar="N",
              help="Training images of an epoch. [default: ImageNet's]")  # fmt: skip
@click.option("--epochs", type=click.IntRange(1), default=90, metavar="N",
              help="Epochs of the whole training.")  # fmt: skip
@click.option("--deadline", type=_ABOVE_0, metavar="HOURS", help="Longest training time.")
@click.option("--node-hours", type=_ABOVE_0, metavar="N", help="Most node-hours of training.")
@click.option("--accuracy", type=click.FloatRange(0, 100, min_open=True), metavar="PERCENT",
              help="Lowest top-1 accuracy.")  # fmt: skip
@click.option("--max-gpus", type=click.IntRange(1, 2**20), metavar="N",
              help="Largest number of GPUs (ranks). [default: a site 1024, this machine all]"
              )  # fmt: skip
@click.option("--results", "root", type=FOLDER, metavar="DIR",
              help="Folder of your records. [default: committed data/]")  # fmt: skip
@click.option("--figure", "stem", type=FILE, metavar="FILE",
              help="Draw time over node-hours as FILE.svg, .pdf, .png and .csv.")  # fmt: skip
def advise(
    site_name: str | None,
    model: str,
    dataset: str,
    images: int | None,
    epochs: int,
    max_gpus: int | None,
    root: Path | None,
    stem: Path | None,
    **limits: float | None,
) -> None:
    """Recommend a strategy, a loader and a number of GPUs that meet some limits.

    The evidence is runs of the same machine, and the paper's statements on its own machine. No
    option lies further than four times beyond the largest measured number of GPUs. Status 1 if
    nothing was measured, or if no option meets the limits; the message names limits that are met.
    """
    from ddl_tools.launch.slurm.site import find_site
    from ddl_tools.scaling import advise as core
    from ddl_tools.scaling import render
    from ddl_tools.scaling.options import Limits

    if site_name:
        site = find_site(site_name)
        machine = core.Machine(Path(site_name).stem, site.description, site.gpus_per_node)
    else:
        machine = core.Machine.here()
    request = core.Request(machine, model, Limits(**limits), dataset, images, epochs, max_gpus)
    found = core.advise(request, Tree(root.resolve()) if root else committed())
    click.echo(render.text(found))
    click.echo(f"\n{render.table(found)}")
    if stem:
        from ddl_tools.analysis.figures.advice import draw, points_of
        from ddl_tools.analysis.plot.canvas import save_figure

        points = points_of(found)
        for path in save_figure(draw(points), points, stem):
            click.echo(f"figure: {path}")
