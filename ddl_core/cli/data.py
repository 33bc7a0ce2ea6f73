"""``ddl data ...``."""

from pathlib import Path
from typing import Any

import click

from ddl_core.cli.options import FOLDER
from ddl_core.errors import DataError
from ddl_core.paths import results


@click.group()
def data() -> None:
    """Make and check image folders."""


@data.command("sample")
@click.argument("folder", metavar="[DIR]", type=FOLDER, required=False)
@click.option("--train-per-class", type=click.IntRange(1), help="Training images of each class.")
@click.option("--val-per-class", type=click.IntRange(1), help="Validation images of each class.")
@click.option("--seed", type=click.IntRange(0), help="Another seed, other crops. [default: 0]")
def sample_command(folder: Path | None, **chosen: int | None) -> None:
    """Make an ImageNet-shaped sample set from photographs that installed packages ship.

    DIR is the folder to make; by default the place where studies look for the sample set. What is
    there already is completed, not made again. Without options: the set of the laptop study.
    """
    from ddl_core.datasets.sample import make_sample

    target = folder or results().dataset("sample")
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    make_sample(target, progress=True, **given)
    click.echo(f"the sample set is in {target}")


@data.command("verify")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--checksums", is_flag=True, help="Also compare every file with the manifest.")
@click.option("--processes", type=int, help="Processes that read. [default: one per core]")
def verify_command(folder: Path, checksums: bool, processes: int | None) -> None:
    """Read every image of an ImageNet-like folder and name each that is damaged."""
    from ddl_core.datasets.verify import verify

    report = verify(folder, progress=True, processes=processes, checksums=checksums)
    click.echo(report.text())
    if not report.ok:
        raise DataError(f"{folder} has damaged or unusual files, named above")
