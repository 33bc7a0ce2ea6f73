"""``ddl figures``."""

from pathlib import Path

import click

from ddl_core.cli.options import FOLDER, tree_of
from ddl_core.records.paths import README, committed


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
    """Rebuild all tables and draw all figures from records; needs no torch and no GPU.

    A figure without anything to show is removed and named; one without a run of yours, but with
    statements of the paper, says so. Of the committed records also what the README says of them.
    """
    from ddl_core.analysis import readme
    from ddl_core.analysis.metrics import WORLD_G_PER_KWH
    from ddl_core.analysis.redraw import not_drawn, redraw

    if carbon_g_per_kwh is None:
        carbon_g_per_kwh = WORLD_G_PER_KWH
    tree = tree_of(root) if root else committed()
    drawn = redraw(tree, figures=tree.figures, carbon_g_per_kwh=carbon_g_per_kwh)
    if root is None:
        readme.update(README, readme.texts(tree))
    click.echo(f"{len(drawn)} files in {tree.figures}")
    if missing := not_drawn(drawn):
        lacks = ", ".join(f"{name} (needs {need})" for name, need in missing.items())
        click.echo(f"not drawn, nothing to show: {lacks}")
