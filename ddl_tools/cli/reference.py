"""Reference pages of docs/, written from the code: commands, run fields, records.

``python -m ddl_tools.cli.reference`` writes them (`make reference`); a test demands that they are
up to date.
"""

import inspect
import json
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from pydantic_core import PydanticUndefined

from ddl_core.config import STUDY_ONLY, run_fields
from ddl_core.errors import EXIT_CODES
from ddl_core.timing import Spent
from ddl_tools import markdown
from ddl_tools.cli import answers, main
from ddl_tools.records import run
from ddl_tools.records.failures import REMEDIES
from ddl_tools.records.paths import PROJECT
from ddl_tools.records.profiling import ProfileRecord, RankProfile, Shares

FOLDER = PROJECT / "docs" / "reference"
NAMES = ("cli", "cli-data", "cli-study", "exit-codes", "run-fields", "records", "failures", "json")
MODELS: tuple[type[BaseModel], ...] = (
    run.RunRecord,
    run.Attempt,
    run.Failure,
    run.DataInfo,
    run.EpochRecord,
    Spent,
    run.Slot,
    run.Emulation,
    ProfileRecord,
    RankProfile,
    Shares,
    *answers.MODELS,
)
GROUPS = ("data", "study")  # groups of commands with a page of their own
FIELD_OPTIONS = (
    "`--FIELD VALUE`",
    "An option for each [run field](run-fields.md): `--local-batch-size` for `local_batch_size`.",
)


def block(name: str) -> str:
    """Return a block: commands, exit codes, run fields, failures, or the fields of a model."""
    if name in ("commands", *GROUPS):
        groups = (name,) if name in GROUPS else {*main.commands} - {*GROUPS}
        return "\n\n".join(text for one, text in _commands(root()) if one.split()[1] in groups)
    if name == "run_fields":
        return markdown.table(("field", "default", "meaning"), _run_fields())
    if name == "exit_codes":
        codes = ((str(code), text) for code, text in EXIT_CODES.items())
        return markdown.table(("exit code", "meaning"), codes)
    if name == "failures":
        rows = ((f"`{category}`", remedy) for category, remedy in REMEDIES.items())
        return markdown.table(("class", "what to do"), rows)
    (model,) = (one for one in MODELS if one.__name__ == name)
    fields = model.model_fields.items()
    rows = ((f"`{field}`", info.description or "") for field, info in fields)
    return markdown.table(("field", "meaning"), rows)


def root() -> click.Context:
    """Return the context of `ddl`."""
    return click.Context(main, info_name="ddl", **main.context_settings)


def _run_fields() -> Iterator[tuple[str, str, str]]:
    for name, field in run_fields().items():
        if name in STUDY_ONLY:
            continue
        default = "null" if field.default is None else str(field.default).lower()
        allowed = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        choices = f": {', '.join(f'`{one}`' for one in allowed)}" if allowed else ""
        assert field.default is not PydanticUndefined
        yield f"`{name}`", default, f"{field.description}{choices}"


def _commands(context: click.Context) -> Iterator[tuple[str, str]]:
    command, name = context.command, context.command_path
    if isinstance(command, click.Group):
        for part in command.list_commands(context):
            found = command.get_command(context, part)
            assert found is not None
            yield from _commands(click.Context(found, context, part))
        return
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    explained = inspect.cleandoc(command.help or "").replace("\b\n  ", "    ")
    text = f"## {name}\n\n    {usage}\n\n{explained}"
    rows = list(_options(context))
    yield name, f"{text}\n\n{markdown.table(('option', 'meaning'), rows)}" if rows else text


def _options(context: click.Context) -> Iterator[tuple[str, str]]:
    of_fields = {*run_fields()} if context.command is main.commands["run"] else set[str]()
    for parameter in context.command.params:
        help_record = parameter.get_help_record(context)
        if help_record and help_record[1] and parameter.name not in of_fields:
            yield f"`{help_record[0]}`", help_record[1].replace("  [", " [")
    if of_fields:
        yield FIELD_OPTIONS


BLOCKS = markdown.Blocks("code", [FOLDER / f"{name}.md" for name in NAMES], block)
SCHEMA = FOLDER / "json.schema.json"


def schema() -> str:
    """Return the JSON Schema of the answers of all commands, one in ``$defs`` for each model."""
    kind: Literal["serialization"] = "serialization"
    models = [(model, kind) for model in answers.MODELS]
    _, found = models_json_schema(models, title="Answers of ddl as JSON")
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    BLOCKS.write()
    SCHEMA.write_text(schema(), encoding="utf-8")
