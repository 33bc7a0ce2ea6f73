"""Options that several commands share, and the options made from the fields of a run."""

import math
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from ddl_core.config import LONGEST_NAME, STUDY_ONLY, RunSpec, run_fields
from ddl_core.errors import DDLError, LaunchError, SpecError
from ddl_core.files import writing_to
from ddl_core.origin import IN_CLONE
from ddl_core.registry import REGISTRIES
from ddl_core.retired import SETTINGS, refusal
from ddl_core.spelling import choices
from ddl_tools.cli.output import say
from ddl_tools.names import named
from ddl_tools.records.agreement import alarm
from ddl_tools.records.ledger import Entry
from ddl_tools.records.paths import RunFiles, Tree, results
from ddl_tools.study import Study, is_name

if TYPE_CHECKING:
    from ddl_tools.launch.slurm.slurm_cli import Queue

Command = TypeVar("Command", bound=Callable[..., Any])
STUDY = "ddl_tools.study"  # in the context of a command: the word that names its study
GIVEN = "ddl_tools.given"  # in the context of a `Repeatable` command: its options, as typed


class PathArgument(click.Path):
    """A path; an empty one, as of a shell variable that is not set, is an error."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        if value == "":
            self.fail("the path is empty; name one, or leave the option out", param, ctx)
        return Path(os.fsdecode(super().convert(value, param, ctx)))


class Number(click.FloatRange):
    """A number of a range, by default up to 10**9; neither nan nor infinity."""

    def __init__(self, least: float = 0, most: float = 10**9, *, min_open: bool = False) -> None:
        super().__init__(least, most, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        if not math.isfinite(click.FLOAT.convert(value, param, ctx)):
            self.fail(f"{value} is not a finite number", param, ctx)
        return super().convert(value, param, ctx)


class Name(click.Choice[Any]):
    """One of some names; a wrong one is answered with those that are like it."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return what to choose instead."""
        return f"unknown name {value!r}; {choices(str(value), map(str, self.choices))}"


FOLDER, FILE = PathArgument(file_okay=False), PathArgument(dir_okay=False)


def _study(context: click.Context, parameter: click.Parameter, name: str) -> Study:
    from ddl_tools.launch.study import find_study

    context.meta[STUDY] = name
    return find_study(name)


def study_word() -> str:
    """Return the STUDY of this call as the user named it."""
    return str(click.get_current_context().meta[STUDY])


def output(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Let errors advise the option or argument that names where a command writes."""
    name = str(parameter.metavar).strip("[]")
    is_option = isinstance(parameter, click.Option)
    place = f"with {parameter.opts[0]} {name}" if is_option else f"for {name}"
    context.with_resource(writing_to(place))
    return value


def require_clone(what: str, instead: str) -> None:
    """Refuse to write files of the project where pip has installed a wheel of it."""
    if not IN_CLONE:
        raise SpecError(f"{what} belongs to a clone of the project, and this is a wheel; {instead}")


def tree_of(root: Path | None) -> Tree:
    """Return the tree that ``--results`` names, or this machine's."""
    return Tree(root.resolve()) if root else results()


study_argument = click.argument("definition", metavar="STUDY", callback=_study)
results_option = click.option(
    "--results",
    "tree",
    type=FOLDER,
    metavar="DIR",
    callback=lambda *given: tree_of(output(*given)),
    help="Folder of the records. [default: DDL_RESULTS, else results/ of the project; with a "
    "wheel, of the current folder]",
)
data_option = click.option(
    "--data",
    "data_dir",
    type=FOLDER,
    metavar="DIR",
    help="Image folder with train/ and val/, e.g. ImageNet's. "
    "[default: the sample set of `ddl data sample`]",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be started; write and start nothing."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the answer as JSON (docs/reference/json.md)."
)
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Also replace files that this command did not write."
)
OVERWRITE = "choose another name, or add --overwrite"
account_option = click.option("--account", metavar="PROJECT", help="Project to bill.")
partition_option = click.option(
    "--partition", metavar="NAME", help="Partition of SLURM. [default: the site's]"
)


def site_option(text: str, required: bool = False) -> Callable[[Command], Command]:
    """Return what adds ``--site SITE``."""
    text += " Read a file of another person first, as you would a job script: jobs run its lines."
    return click.option("--site", "site_name", metavar="SITE", required=required, help=text)


def checked_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Return the name of a study, which is also that of a folder."""
    if not is_name(value):
        raise click.BadParameter(
            f"{value!r} is not made of small letters, digits and _ only, {LONGEST_NAME} at most"
        )
    return value


class Repeatable(click.Command):
    """A command that keeps the options of its call, for a job that repeats it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of a call, and keep the options among them."""
        given, _, order = self.make_parser(ctx).parse_args([*args])
        ctx.meta[GIVEN] = {str(one.name): given[str(one.name)] for one in order}
        return super().parse_args(ctx, args)


def repeated_words(context: click.Context, without: Collection[str]) -> list[str]:
    """Return the options of the call of a `Repeatable` command, in the order of the command.

    Relative paths become absolute: a job works in another folder. `without` are names of
    parameters.
    """
    given, words = context.meta[GIVEN], []
    for option in context.command.params:
        if option.name in without or option.name not in given:
            continue
        for value in given[option.name] if option.multiple else [given[option.name]]:
            if isinstance(value, bool):
                words.append((option.opts if value else option.secondary_opts)[0])
            else:
                path = isinstance(option.type, click.Path)
                words.append(f"{option.opts[0]}={Path(value).absolute() if path else value}")
    return words


def command_of(spec: RunSpec, directory: Path) -> str:
    """Return the command that would start the ranks of a run, or why this machine cannot."""
    from ddl_tools.launch import ranks

    try:
        return str(ranks.command(spec, directory, RunFiles(directory).logs))
    except DDLError as error:
        return f"not on this machine: {error}"


def spec_options(command: Command) -> Command:
    """Add options for the fields of a run, in their order; those of others say why not."""
    refused = [(name, type(setting.value), refusal(name)) for name, setting in SETTINGS.items()]
    for name, field in reversed(run_fields().items()):
        if name in STUDY_ONLY:
            refused.append((name, type(field.default), f"{name} is set by a study file alone"))
        else:
            command = _option(name, field)(command)
    for name, kind, reason in refused:
        command = _refused(name, kind, reason)(command)
    return command


def _option(name: str, field: FieldInfo) -> Callable[[Command], Command]:
    """Return the option of a field; its limits are checked by `RunSpec`."""
    text = field.description or name
    text = f"{text[0].upper()}{text[1:]}."
    kind: Any = next((one for one in (bool, int, float) if _holds(field.annotation, one)), str)
    if name == "model":  # any network of others may be asked for
        text += f" Here: {', '.join(sorted(REGISTRIES[name]))}."
    elif name in REGISTRIES:
        kind = Name(sorted(REGISTRIES[name]))
    elif get_origin(field.annotation) is Literal:
        kind = Name(get_args(field.annotation))
    return click.option(_flag(name, kind), name, type=kind, default=field.default, help=text)


def _flag(name: str, kind: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    return f"{flag}/--no-{flag[2:]}" if kind is bool else flag


def _refused(name: str, kind: type, reason: str) -> Callable[[Command], Command]:
    """Return the hidden option of a field that no command sets, which says why."""

    def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            raise click.UsageError(reason, context)

    flag = _flag(name, kind)
    return click.option(
        flag, type=kind, default=None, hidden=True, expose_value=False, callback=refuse
    )


def _holds(annotation: Any, kind: type) -> bool:
    """Say whether a type is part of an annotation, e.g. of a union."""
    return annotation is kind or any(_holds(part, kind) for part in get_args(annotation))


def show_entries(entries: list[Entry]) -> str:
    """Return a line per run: state, name, what sets it apart, and the reason's first line."""
    lines, names = [], named(item.spec for item in entries)
    for item in entries:
        reason = f"  {item.reason.splitlines()[0]}" if item.reason else ""
        reason = f"  [{item.category}]{reason}" if item.category else reason
        lines.append(f"{item.state:<12}{names[item.spec.run_id]}{reason}")
    return "\n".join(lines)


def log_of_unstarted(entries: list[Entry]) -> list[str]:
    """Return the last lines of the log of the first run that failed before it started, if any."""
    for item in entries:
        cause = item.record.error if item.record and item.state == "failed" else None
        if cause and cause.kind == "NotStarted" and "\n" in item.reason:
            return [f"in {item.directory}:", *item.reason.splitlines()[1:]]
    return []


def warn_of_disagreement(entries: list[Entry]) -> bool:
    """Name in red the groups whose weights differ and must not; return whether there are any."""
    if text := alarm(entries):
        say(text, err=True, alarm=True)
    return bool(text)


def warn(text: str | None) -> None:
    """Print a warning, if there is one."""
    if text:
        say(f"warning: {text}", err=True)


@contextmanager
def warning(text: str) -> Iterator[None]:
    """Turn an error in a ``with`` block into a warning that begins with `text`."""
    try:
        yield
    except DDLError as error:
        warn(f"{text}: {error}")


def ask_queue() -> "Queue | None":
    """Return SLURM's queue; None, with a warning of one line, if it does not answer."""
    from ddl_tools.launch.slurm import slurm_cli

    try:
        return slurm_cli.queue()
    except LaunchError as error:  # of several lines the last one is SLURM's conclusion
        last = str(error).splitlines()[-1]
        warn(f"without the state of the jobs: {last}")
        return None
