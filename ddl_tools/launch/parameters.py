"""Parameters of notebooks: values given as text, and the settings of a run."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from ddl_core.errors import SpecError
from ddl_core.files import shown
from ddl_tools.records.paths import locate, portable
from ddl_tools.records.run import RunRecord
from ddl_tools.study import YamlLoader

# Fields of a run that notebook 01 names; `more` has the others.
NAMED = (
    *("strategy", "loader", "model", "nodes", "gpus_per_node", "local_batch_size", "epochs"),
    "precision",
)
_CONFIG = ConfigDict(coerce_numbers_to_str=True)
_BRACKETS = {list: ("[", "]"), dict: ("{", "}")}


def convert(namespace: dict[str, Any]) -> None:
    """Convert the annotated names of a notebook to their types, in place.

    `papermill -p` passes lists, and numbers in quotes, as text: it is read as in a study file, and
    brackets may be left out. `SpecError` names a parameter that has another type.
    """
    module = ModuleType("parameters")
    module.__annotations__ = namespace.get("__annotations__", {})
    for name, kind in get_type_hints(module, namespace).items():
        namespace[name] = _converted(name, namespace[name], kind)


def _converted(name: str, given: Any, kind: Any) -> Any:
    """Return a value of a type; see `convert`."""
    whole = get_origin(kind) or kind
    value, is_text = given, isinstance(given, str)
    try:
        if is_text and whole in _BRACKETS:
            opening, closing = _BRACKETS[whole]
            text = given.strip().strip("()")
            text = text if text.startswith(opening) else f"{opening}{text}{closing}"
            value, is_text = yaml.load(text, YamlLoader), False
        elif whole is list:
            value = list(given) if isinstance(given, tuple | list) else [given]
        # A number that is no text stays of its kind: True is not 1, and 2.0 not 2.
        strict = not is_text and str not in (kind, *get_args(kind))
        return TypeAdapter(kind, config=_CONFIG).validate_python(value, strict=strict)
    except ValidationError as error:
        problem = error.errors()[0]
        reason = problem["msg"].replace("Input", shown(problem["input"]), 1)
    except (ValueError, RecursionError, yaml.YAMLError):
        reason = "it cannot be read as in a study file"
    raise SpecError(f"parameter {name} = {shown(given)}: {reason}")


def of_run(run_dir: Path, record: RunRecord) -> dict[str, Any]:
    """Return the parameters of notebook 01 for a planned run: its folder and all its settings."""
    fields = record.spec.model_dump(exclude_defaults=True)
    return {
        "run_dir": str(run_dir),
        **{name: getattr(record.spec, name) for name in NAMED},
        "data": str(locate(record.data_dir)) if record.data_dir else None,
        "more": {name: value for name, value in fields.items() if name not in NAMED},
    }


def given_fields(named: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a run that parameters give, without those that are None.

    `SpecError` if a parameter and `more` name the same field.
    """
    fields = {name: value for name, value in named.items() if value is not None}
    if twice := sorted(named.keys() & more.keys()):
        raise SpecError(f"more = {shown(dict(more))}: {twice[0]} is a parameter of its own")
    return fields | dict(more)


def require_same(record: RunRecord, fields: Mapping[str, Any], data: str | None) -> None:
    """Raise `SpecError` if fields of a run, or its folder of data, differ from those of a record.

    The record is what runs. Data of None, or "", are not given.
    """
    settings = dict(record.spec)
    different = {
        name: settings.get(name)
        for name, value in fields.items()
        if name not in settings or settings[name] != value
    }
    asked = dict(fields)
    if data and not _is_folder(data, record.data_dir):
        asked["data"], different["data"] = data, record.data_dir
    for name, value in different.items():
        raise SpecError(
            f"{name} = {shown(asked[name])}, but the record of run {record.run_id} has "
            f"{shown(value)}, which counts; leave the parameter out, or plan another run"
        )


def _is_folder(data: str, recorded: str | None) -> bool:
    """Say whether a path leads to the folder that a record names."""
    if recorded is None:
        return False
    # A link in the path may lead elsewhere since the run was planned.
    return Path(data) == locate(recorded) or portable(Path(data)) == recorded
