"""``ddl report``."""

from pathlib import Path

import click

from ddl_core.cli.options import FOLDER, tree_of
from ddl_core.records.paths import REPORT, committed


@click.command()
@click.option(
    "--results",
    "root",
    type=FOLDER,
    metavar="DIR",
    help="Report the records below DIR in DIR/report. [default: committed data/ in build/report/]",
)
@click.option("--to", "folder", type=FOLDER, metavar="DIR", help="Write the pages there instead.")
def report(root: Path | None, folder: Path | None) -> None:
    """Execute the notebooks that show results and write them as one folder of HTML, to be sent.

    Pictures are inside the pages, which load nothing from elsewhere; the lab book of each run is
    linked where there is one. An older report in the folder is replaced. Takes some minutes.
    """
    from ddl_core.analysis.redraw import redraw
    from ddl_core.launch.report import write_report

    tree = tree_of(root) if root else committed()
    if root and tree.studies():  # the index shows the figure that answers each study's question
        redraw(tree, figures=tree.figures)
    index = write_report(tree, folder or (tree.root / REPORT.name if root else REPORT))
    click.echo(f"open {index} in a browser, or send the folder {index.parent}")
