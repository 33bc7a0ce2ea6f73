"""``ddl data ...``."""

from pathlib import Path
from typing import Any

import click

from ddl_core.errors import DataError
from ddl_core.registry import FORMATS
from ddl_tools.cli import options as common
from ddl_tools.cli.options import FOLDER
from ddl_tools.cli.output import say, say_next
from ddl_tools.datasets import PUBLIC_SETS
from ddl_tools.names import plural
from ddl_tools.records.paths import results


@click.group()
def data() -> None:
    """Make, convert and check sets of images: folders or TFRecord files."""


PROCESSES = click.option(
    "--processes", type=click.IntRange(1, 1024), help="Number of processes. [default: one per core]"
)


@data.command("sample")
@click.argument("folder", metavar="[DIR]", type=FOLDER, required=False, callback=common.output)
@click.option("--classes", type=click.IntRange(1, 10**6), help="Number of classes. [default: 16]")
@click.option(
    "--train-per-class", type=click.IntRange(1, 10**6), help="Training images of each class."
)
@click.option(
    "--val-per-class", type=click.IntRange(1, 10**6), help="Validation images of each class."
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the crops. [default: 0]")
def sample_command(folder: Path | None, **chosen: int | None) -> None:
    """Make an ImageNet-shaped sample set from photographs that installed packages ship.

    DIR is the folder to make; by default the place where studies look for the sample set. A
    complete set is left as it is. After an interrupt, the same command continues. Without options:
    the set of the laptop study.

    A set as large as ImageNet, for a test of a cluster (150 GB in 1.3 million files; one core
    makes about 25 a second and needs 3 GB of memory):

    \b
      ddl data sample DIR --classes 1000 --train-per-class 1281 --val-per-class 50
    """  # noqa: D301 (click wants the backspace itself)
    from ddl_tools.datasets.sample import make_sample

    target = folder or results().dataset("sample")
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    make_sample(target, **given)
    say(f"the sample set is in {target}")
    say_next(["ddl", "recommend", "--model", "resnet18", *(["--data", folder] if folder else [])])


@data.command("import")
@click.argument("name", metavar="NAME", type=common.Name(PUBLIC_SETS))
@click.argument("folder", metavar="[DIR]", type=FOLDER, required=False, callback=common.output)
@click.option("--source", type=FOLDER, help="Folder of the packed files.")
def import_command(name: str, folder: Path | None, source: Path | None) -> None:
    """Write a small public set as an image folder, which all loaders read.

    DIR is by default the folder where studies look for the set. The source of fashion_mnist is
    Debian's package dataset-fashion-mnist or the files that torchvision downloads; of cifar10 the
    folder with cifar-10-binary.tar.gz; of digits scikit-learn. Files other than the published ones
    are refused. ImageNet needs no import.
    """
    from ddl_tools.datasets.public import import_set

    target = folder or results().dataset(name)
    images = import_set(name, target, source)
    say(f"{target} has {plural(images, 'image', ',')}" if images else f"{target} was there already")
    say_next(["ddl", "data", "verify", target])


@data.command("write")
@click.argument("source", metavar="SOURCE")
@click.argument("folder", metavar="DIR", type=FOLDER, callback=common.output)
def write_command(source: str, folder: Path) -> None:
    """Write a set of your own to DIR as an image folder, which all loaders read.

    SOURCE is package.module:function, a function of yours that returns the images of training and
    validation. Images that are no RGB become RGB or grey: docs/how-to/use-your-data.md has the
    rule and examples.
    """
    from ddl_core.data.folder import class_folders
    from ddl_tools.datasets.write import write_function

    images = write_function(source, folder)
    classes = len(class_folders(folder / "train"))
    say(f"{folder} has {plural(images, 'image', ',')} of {plural(classes, 'class', ',')}")
    say_next(["ddl", "data", "verify", folder])


@data.command("convert")
@click.argument("folder", metavar="[DIR]", type=FOLDER, required=False)
@click.option(
    "--out",
    type=FOLDER,
    metavar="DIR",
    callback=common.output,
    help="Folder to write. [default: DIR/tfrecord]",
)
@click.option(
    "--to", type=common.Name(sorted(FORMATS)), default="tfrecord", help="Format to write."
)
@click.option("--train-shards", type=click.IntRange(1, 10**6), help="Files of the training images.")
@click.option("--val-shards", type=click.IntRange(1, 10**6), help="Files of the validation images.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the order of the images.")
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@PROCESSES
def convert_command(
    folder: Path | None, dry_run: bool, processes: int | None, **chosen: Any
) -> None:
    """Convert an image folder to TFRecord files and their indices.

    DIR is an ImageNet-like folder; by default the sample set. The images keep their bytes and are
    shuffled before they are divided into files, by default of 64 to 128 MB. An interrupted
    conversion continues. Indices are for DALI and the native loader.

    ImageNet in as many files as published conversions have (150 GB):

    \b
      ddl data convert DIR --train-shards 1024 --val-shards 128
    """  # noqa: D301
    from ddl_tools.datasets.convert import plan

    conversion = plan(folder or results().dataset("sample"), **chosen)
    say(conversion.text())
    if not dry_run:
        conversion.run(processes=processes)
        say_next(["ddl", "data", "verify", conversion.folder])


@data.command("index")
@click.argument("folder", metavar="DIR", type=FOLDER)
@PROCESSES
def index_command(folder: Path, processes: int | None) -> None:
    """Index the TFRecord files in DIR that have no index.

    Reads train-*-of-* and validation-*-of-*, and writes index/*.idx beside them: the start of each
    record, which DALI and the native loader need.
    """
    from ddl_tools.datasets.convert import make_indices

    made, kept = make_indices(folder, processes=processes)
    say(f"{made} indices made, {kept} were there")
    say_next(["ddl", "data", "verify", folder])


@data.command("verify")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option(
    "--data-format",
    type=common.Name(sorted(FORMATS)),
    help="Format of the data. [default: the one that is found]",
)
@PROCESSES
def verify_command(folder: Path, data_format: str | None, processes: int | None) -> None:
    """Read every image of a set and name each that is damaged.

    DIR is an ImageNet-like folder, or one of TFRecord files. The checksums of records and of the
    sample set are compared, too.
    """
    from ddl_tools.datasets.verify import verify

    report = verify(folder, data_format=data_format, processes=processes)
    say(report.text())
    if not report.ok:
        raise DataError(f"{folder} is not fit for a measurement: the errors are named above")
    say_next(["ddl", "recommend", "--model", "resnet18", "--data", folder])
