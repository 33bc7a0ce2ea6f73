"""``ddl kernel ...``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ddl_core.cli.options import FOLDER


@click.group()
def kernel() -> None:
    """Make this environment a kernel of JupyterLab, also of a JupyterHub portal."""


def _name_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--name", default="ddl", show_default=True, help="Small letters, digits and . _ - only."
    )(command)


def _place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--prefix", type=FOLDER, metavar="DIR", help="Under DIR/share/jupyter, e.g. for a group."
    )(command)
    return click.option(
        "--user", is_flag=True, help="In this user's Jupyter folder. [default without --prefix]"
    )(command)


def _checked_place(user: bool, prefix: Path | None) -> Path | None:
    if user and prefix:
        raise click.UsageError("--user and --prefix exclude each other; choose one")
    return prefix


@kernel.command()
@_name_option
@click.option(
    "--site",
    metavar="NAME",
    help="Load the modules of this machine: a name from slurm/, or a file.",
)
@_place_options
@click.option("--dry-run", is_flag=True, help="Print the files; write nothing.")
def install(name: str, site: str | None, user: bool, prefix: Path | None, dry_run: bool) -> None:
    """Install the kernel, in the place of an older one that this command has made."""
    from ddl_core.launch.kernelspec import Kernel

    new = Kernel(name, site, _checked_place(user, prefix))
    if dry_run:
        description = json.dumps(new.description(), indent=1)
        click.echo(f"# {new.folder}/kernel.json\n{description}\n\n# {new.folder}/kernel.sh")
        click.echo(new.script(), nl=False)
        return
    click.echo(f"installed {new.display_name!r} in {new.install()}")


@kernel.command()
@_name_option
@_place_options
def uninstall(name: str, user: bool, prefix: Path | None) -> None:
    """Remove a kernel that `ddl kernel install` has made."""
    from ddl_core.launch.kernelspec import Kernel

    click.echo(f"removed {Kernel(name, prefix=_checked_place(user, prefix)).uninstall()}")
