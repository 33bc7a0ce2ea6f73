"""``ddl figures``."""

from pathlib import Path

import click

from ddl_core.cli.options import FOLDER, tree_of
from ddl_core.errors import RecordError
from ddl_core.records.paths import committed
from ddl_core.records.run import UNKNOWN


@click.command()
@click.option(
    "--results",
    "root",
    type=FOLDER,
    metavar="DIR",
    help="Draw the records below DIR into DIR/figures. [default: committed data/ into figures/]",
)
@click.option(
    "--study",
    "studies",
    multiple=True,
    metavar="STUDY",
    help="Draw only this study; given several times, these together in one folder.",
)
@click.option(
    "--carbon-intensity",
    "carbon_g_per_kwh",
    type=click.FloatRange(min=0),
    metavar="G",
    help="g CO2e per kWh of electricity here, for the tables. [default: 458.29, the world in 2025]",
)
def figures(root: Path | None, studies: tuple[str, ...], carbon_g_per_kwh: float | None) -> None:
    """Rebuild all tables and draw all figures from records; needs no torch and no GPU.

    Each study has a folder of its own, and the paper's statements have one. A figure without
    anything to show is removed and named; with --study, also the reason for each figure that is not
    drawn. A damaged record is named and not drawn, and the status is then 1. From the committed
    records also the results in README.md, docs/results/ and figures/README.md.
    """
    from ddl_core.analysis import readme, results_page
    from ddl_core.analysis.metrics import WORLD_G_PER_KWH
    from ddl_core.analysis.redraw import redraw

    if carbon_g_per_kwh is None:
        carbon_g_per_kwh = WORLD_G_PER_KWH
    tree = tree_of(root) if root else committed()
    done = redraw(tree, figures=tree.figures, studies=studies, carbon_g_per_kwh=carbon_g_per_kwh)
    for line in done.told(reasons=bool(studies)):
        click.echo(line)
    click.echo(f"{len(done.files)} files in {tree.figures}")
    if done.damaged:
        unknown = sum(UNKNOWN in line for line in done.damaged)
        kinds = {"damaged": len(done.damaged) - unknown, "of plug-ins not installed here": unknown}
        said = ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
        raise RecordError("\n".join([f"{said}, in no figure:", *done.damaged]))
    if root is None and not studies:
        readme.write(tree)
        results_page.write(tree, tree.figures)
