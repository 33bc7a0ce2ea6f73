"""``ddl advise``."""

from pathlib import Path

import click

from ddl_core.cli.options import FILE, FOLDER
from ddl_core.records.paths import Tree, committed
from ddl_core.spec.registry import MODELS

_ABOVE_0 = click.FloatRange(min=0, min_open=True)


@click.command()
@click.option("--site", "site_name", metavar="SITE",
              help="Machine: a name from slurm/, or a path. [default: this one]")  # fmt: skip
@click.option("--model", type=click.Choice(sorted(MODELS)), default="resnet50", show_default=True,
              help="Network.")  # fmt: skip
@click.option("--dataset", metavar="NAME", default="imagenet", show_default=True,
              help="Data set, as records name it.")  # fmt: skip
@click.option("--images", type=click.IntRange(1), metavar="N",
              help="Training images of an epoch. [default: ImageNet's]")  # fmt: skip
@click.option("--epochs", type=click.IntRange(1), default=90, show_default=True, metavar="N",
              help="Of the whole training.")  # fmt: skip
@click.option("--deadline", type=_ABOVE_0, metavar="HOURS", help="Limit: time of training.")
@click.option("--node-hours", type=_ABOVE_0, metavar="N", help="Limit: nodes times hours.")
@click.option("--energy", type=_ABOVE_0, metavar="KWH",
              help="Limit: energy, where records have measured it.")  # fmt: skip
@click.option("--accuracy", type=click.FloatRange(0, 100, min_open=True), metavar="PERCENT",
              help="Limit: top-1 accuracy, at least.")  # fmt: skip
@click.option("--most-gpus", type=click.IntRange(1, 2**20), metavar="N",
              help="Look at so many at most. [default: a site 1024, this machine all]")  # fmt: skip
@click.option("--as-if", metavar="MACHINE",
              help="Take evidence of this machine in the place of the site's own.")  # fmt: skip
@click.option("--results", "root", type=FOLDER, metavar="DIR",
              help="Your records. [default: those committed in data/]")  # fmt: skip
@click.option("--figure", "stem", type=FILE, metavar="FILE",
              help="Draw time over node-hours as FILE.svg, .pdf, .png and .csv.")  # fmt: skip
def advise(
    site_name: str | None,
    model: str,
    dataset: str,
    images: int | None,
    epochs: int,
    most_gpus: int | None,
    as_if: str | None,
    root: Path | None,
    stem: Path | None,
    **limits: float | None,
) -> None:
    """Say which strategy and loader on how many GPUs keeps some limits, and how sure that is.

    From the paper's values and the committed records, or your own with --results. Evidence of one
    kind of machine is never taken for another, unless --as-if asks for it. Status 1 where there is
    no evidence of what is asked, or where nothing keeps the limits: what would, is then told.
    """
    from ddl_core.launch.slurm.site import find_site
    from ddl_core.scaling.advice import advise as core
    from ddl_core.scaling.advice import told
    from ddl_core.scaling.advice.candidates import Limits

    place = core.Place.of(site_name, find_site(site_name)) if site_name else core.Place.here()
    asked = core.Question(place, model, Limits(**limits), dataset, images, epochs, most_gpus, as_if)
    found = core.advise(asked, Tree(root.resolve()) if root else committed())
    click.echo(told.text(found))
    click.echo(f"\n{told.table(found)}")
    if stem:
        from ddl_core.analysis.figures.advice import draw, points_of
        from ddl_core.analysis.plot.canvas import save_figure

        points = points_of(found)
        for path in save_figure(draw(points), points, stem):
            click.echo(f"figure: {path}")
