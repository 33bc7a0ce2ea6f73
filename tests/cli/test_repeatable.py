"""The options of a call, as words for a job that repeats it."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ddl_tools.cli.options import PathArgument, Repeatable, repeated_words


@click.command(cls=Repeatable)
@click.option("--sizes", callback=lambda context, parameter, text: tuple(text or ""))
@click.option("--folder", type=PathArgument())
@click.option("--name", "names", multiple=True)
@click.option("--fast/--no-fast", default=True)
@click.option("--dry-run", is_flag=True)
@click.option("--minutes", type=float, default=10.0)
@click.pass_context
def command(context: click.Context, /, **values: object) -> None:
    """Print the words of its call."""
    click.echo("\n".join(repeated_words(context, without=("dry_run",))))


def words_of(*given: str) -> list[str]:
    done = CliRunner().invoke(command, given)
    assert done.exit_code == 0, done.output
    return done.output.split()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), []),
        (("--minutes", "3", "--sizes", "1,2"), ["--sizes=1,2", "--minutes=3"]),
        (("--minutes=3", "--dry-run", "--sizes=1,2"), ["--sizes=1,2", "--minutes=3"]),
        (("--name", "b", "--name", "a"), ["--name=b", "--name=a"]),
        (("--no-fast",), ["--no-fast"]),
        (("--folder", "x"), [f"--folder={Path('x').absolute()}"]),
    ],
)
def test_words_are_those_of_the_call(given: tuple[str, ...], words: list[str]) -> None:
    """In the order of the command, in one form, without defaults."""
    assert words_of(*given) == words
    assert words_of(*words) == words


def test_a_mistake_is_named_as_in_any_command() -> None:
    done = CliRunner().invoke(command, ["--no-such"])
    assert done.exit_code == 2
    assert "No such option '--no-such'" in done.output
