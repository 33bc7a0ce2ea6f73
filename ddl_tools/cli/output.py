"""Printing of all commands: texts of others cannot act on the terminal."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

import click
from pydantic_core import to_jsonable_python

from ddl_tools.visible import visible


def say(text: object, *, err: bool = False, nl: bool = True, alarm: bool = False) -> None:
    """Print a text as `visible` shows it, on standard error with `err`, and in red as an alarm."""
    shown = visible(text)
    click.echo(click.style(shown, fg="red", bold=True) if alarm else shown, err=err, nl=nl)


def say_next(*commands: Sequence[object]) -> None:
    """Print the commands that follow on the one that ends, each by its words."""
    say(f"next: {'; '.join(shlex.join(map(str, words)) for words in commands)}")


def say_json(value: Any) -> None:
    """Print a value, also a model, as JSON; what is no finite number becomes null."""
    plain = to_jsonable_python(value, inf_nan_mode="null")
    say(json.dumps(plain, indent=1).replace("\x7f", r"\u007f"))
