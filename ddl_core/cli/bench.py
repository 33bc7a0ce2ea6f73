"""``ddl bench ...``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from ddl_core.cli.options import data_option
from ddl_core.errors import NotInstalledError
from ddl_core.records.paths import results
from ddl_core.spec.registry import LOADERS
from ddl_core.spec.run import RunSpec

READERS = sorted(name for name in LOADERS if name != "synthetic")


@click.group()
def bench() -> None:
    """Measure one part alone."""


@bench.command("loader")
@click.option(
    "--loader",
    "loaders",
    type=click.Choice(READERS),
    multiple=True,
    help="May be given several times. [default: all that run on the CPU]",
)
@click.option(
    "--data-format",
    "formats",
    type=click.Choice(["folder", "tfrecord"]),
    multiple=True,
    help="May be given several times. [default: folder]",
)
@click.option("--threads", type=click.IntRange(0, 1024), default=1, show_default=True,
              help="Processes of the loader; DALI: threads.")  # fmt: skip
@click.option("--image-size", type=int, default=224, show_default=True, help="Side, pixels.")
@click.option("--local-batch-size", type=int, default=64, show_default=True, help="Images.")
@click.option("--images", type=click.IntRange(1), help="Use only so many. [default: all]")
@click.option("--epochs", type=click.IntRange(1, 1000), default=3, show_default=True,
              help="Passes from memory, after one from the disk.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@data_option
def loader_command(
    loaders: tuple[str, ...],
    formats: tuple[str, ...],
    as_json: bool,
    data_dir: Path | None,
    **settings: Any,
) -> None:
    """Measure how fast loaders could feed a training, and where their time goes.

    Each loader is measured alone: first with the files dropped from memory (cold), then from
    memory (the median of --epochs passes), then stage by stage in one thread.
    """
    from ddl_core.launch.measuring import alone

    folder = data_dir or results().dataset("sample")
    arms = [
        (loader, form)
        for loader in loaders or [name for name in READERS if not name.endswith("_gpu")]
        for form in formats or ("folder",)
    ]
    found = []
    with alone("ddl bench loader"):
        for loader, form in tqdm(arms, desc="loaders", unit="loader", leave=False):
            found.append(_measure(loader, form, folder, **settings))
    click.echo(json.dumps(found, indent=1) if as_json else _table(found))


def _measure(
    loader: str, form: str, folder: Path, threads: int, images: int | None, epochs: int, **rest: int
) -> dict[str, Any]:
    from ddl_core.train import bench as core

    arm = {"loader": loader, "data_format": form}
    limit = {"train_images": images} if images else {}
    spec = RunSpec.parse({**arm, **rest, **limit, "loader_workers": threads, "work": "load"})
    try:
        opened = core.open_loader(spec, folder)
    except NotInstalledError as error:
        return {**arm, "missing": str(error)}
    core.forget_files(folder, form)
    cold = core.measure_epoch(opened, 0, "cold")
    warm = [core.measure_epoch(opened, 1 + epoch, "warm") for epoch in range(epochs)]
    warm.sort(key=lambda rate: rate.images_per_core_s)
    rates = [cold, warm[len(warm) // 2], *core.stages(spec, folder)]
    return {**arm, "threads": threads, "rates": [asdict(rate) for rate in rates]}


def _table(found: list[dict[str, Any]]) -> str:
    """Return the report for people: a line per loader, its stages below."""
    lines = [f"{'loader':<24}{'':<12}{'images/s':>10}{'images/s per core':>20}"]
    for arm in found:
        name = f"{arm['loader']}, {arm['data_format']}"
        if "missing" in arm:
            lines.append(f"{name:<24}{arm['missing']}")
            continue
        for rate in arm["rates"]:
            lines.append(
                f"{name:<24}{rate['what']:<12}{rate['images_per_s']:>10.0f}"
                f"{rate['images_per_core_s']:>20.0f}"
            )
            name = ""
    return "\n".join(lines)
