"""The gate of the command line: what a user hands in, in whichever way, goes through it first.

It is put before every parameter from the tree of commands, so that a new command cannot forget it.
"""

import io
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from ddl_core.spec import gate

FOLDERS = ("DDL_RESULTS", "DDL_DATA")  # environment variables that name one
SECONDS = ("DDL_STALL_TIMEOUT", "DDL_SETUP_TIMEOUT")


class Place(click.Path):
    """A path that may be one; `what` says what it has to lead to, where it leads to something."""

    def __init__(self, **what: Any) -> None:
        super().__init__(path_type=Path, **what)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        if value == "":  # to Python it is the folder where the user happens to be
            self.fail("it is empty; name a place, or leave it out", param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        wanted = [gate.FILE] * self.file_okay + [gate.FOLDER] * self.dir_okay
        gate.check_place(_name(param) if param else "path", path, tuple(wanted))
        return path


def guard(command: click.Command) -> None:
    """Put the gate before every parameter of a command, and of all commands below it."""
    for parameter in command.params:
        parameter.callback = partial(_checked, parameter.callback)
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            guard(inner)


def _checked(then: Any, context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Check what was given, then do what the command itself asks for."""
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, str | Path):
            gate.check_text(_name(parameter), str(one))
        elif isinstance(one, int | float):
            gate.check_number(_name(parameter), one)
    return then(context, parameter, value) if then else value


def _name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.human_readable_name.strip("[]")


def check_environment() -> None:
    """Check the variables that stand for options.

    Raises
    ------
    SpecError
        Naming the variable.
    """
    for name in FOLDERS:
        if text := os.environ.get(name):
            gate.check_place(name, Path(text), (gate.FOLDER,))
    for name in SECONDS:
        if text := os.environ.get(name):
            gate.seconds(name, text)


def escape_output() -> None:
    """Show names of files that are not UTF-8 with escapes, instead of failing to show them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
