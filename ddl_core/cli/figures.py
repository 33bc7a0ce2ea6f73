"""``ddl figures``."""

from pathlib import Path

import click

from ddl_core.cli.options import FOLDER, tree_of
from ddl_core.records.paths import committed


@click.command()
@click.option(
    "--results",
    "root",
    type=FOLDER,
    metavar="DIR",
    help="Draw the records below DIR into DIR/figures. [default: committed data/ into figures/]",
)
@click.option(
    "--carbon-intensity",
    "carbon_g_per_kwh",
    type=click.FloatRange(min=0),
    metavar="G",
    help="g CO2e per kWh of electricity here, for the tables. [default: 458.29, the world in 2025]",
)
def figures(root: Path | None, carbon_g_per_kwh: float | None) -> None:
    """Rebuild all tables and draw all figures from records; needs no torch and no GPU."""
    from ddl_core.analysis.metrics import WORLD_G_PER_KWH
    from ddl_core.analysis.redraw import redraw

    if carbon_g_per_kwh is None:
        carbon_g_per_kwh = WORLD_G_PER_KWH
    tree = tree_of(root) if root else committed()
    drawn = redraw(tree, figures=tree.figures, carbon_g_per_kwh=carbon_g_per_kwh)
    click.echo(f"{len(drawn)} files in {tree.figures}")
