"""``ddl figures``."""

from pathlib import Path

import click

from ddl_core.cli.options import FOLDER, tree_of
from ddl_core.paths import committed


@click.command()
@click.option(
    "--results",
    "root",
    type=FOLDER,
    metavar="DIR",
    help="Draw the records below DIR into DIR/figures. [default: committed data/ into figures/]",
)
def figures(root: Path | None) -> None:
    """Rebuild all tables and draw all figures from records; needs no torch and no GPU."""
    from ddl_core.analysis import redraw

    tree = tree_of(root) if root else committed()
    drawn = redraw(tree, figures=tree.figures)
    click.echo(f"{len(drawn)} files in {tree.figures}")
