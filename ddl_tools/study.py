"""A study: a question, and the grid of runs that answers it."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from ddl_core import retired
from ddl_core.combinations import OF_COMMAND
from ddl_core.config import LONGEST_NAME, NAME, RunSpec, run_fields
from ddl_core.errors import SpecError
from ddl_core.files import MOST_PROBLEMS, describe, read_plain, shown, some
from ddl_core.registry import COMMAND
from ddl_core.spelling import choices

ADHOC = "adhoc"  # single runs of `ddl run`, which are no study's
MOST_RUNS = 10_000  # of a study
MOST_BYTES = 1_000_000  # of its file
GLOBAL_BATCH = "global_batch_size"
"""Name in base or axes that stands for ``local_batch_size``: images of all ranks and one update."""
PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
"""A word of a command that base or axes give a value."""


NAMES = "a name has lower-case letters, digits and underscores"


def is_name(text: str) -> bool:
    """Say whether a text may name a study: the name is also that of a folder."""
    return re.fullmatch(NAME, text) is not None and len(text) <= LONGEST_NAME


@contextmanager
def reading(path: Path, model: type[BaseModel]) -> Iterator[None]:
    """Turn any exception while a block reads a user's file into a `SpecError` that names the file.

    `model` is what the file holds.
    """
    kind = model.__name__.lower()
    try:
        yield
    except OSError as error:
        raise SpecError(f"cannot read the {kind} {path}: {error.strerror or error}") from None
    except ValidationError as error:
        raise SpecError(f"{path}:\n{describe(error, model)}") from None
    except SpecError as error:
        raise SpecError(f"{path}:\n{error}") from None
    except Exception as error:  # of the format, the encoding, or a field within itself
        raise SpecError(
            f"{path} is not a valid {kind} file: {str(error) or type(error).__name__}"
        ) from None


class Interleave(BaseModel):
    """Interleaved measurement of a study, and its baseline."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reference: dict[str, Any] = Field(description="RunSpec fields that only the baseline has")

    def is_reference(self, run: RunSpec) -> bool:
        """Say whether a run is of the baseline: one that trains, and no second start of it."""
        fields = dict(run)
        fits = all(fields[name] == value for name, value in self.reference.items())
        return fits and run.work == "train" and not run.second_start


class Study(BaseModel):
    """A question and the grid of runs that answers it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    question: str = Field(max_length=2_000)
    base: dict[str, Any] = Field(default_factory=dict, description="RunSpec fields of all runs")
    axes: list[dict[str, list[Any]]] = Field(
        [{}], min_length=1, description="grids, each field -> values to combine"
    )
    repeats: PositiveInt = Field(3, le=MOST_RUNS)
    interleave: Interleave | None = Field(
        None, description="the epochs of all configurations alternate on one machine"
    )

    @field_validator("name")
    @classmethod
    def _is_not_reserved(cls, value: str) -> str:
        if value == ADHOC:
            raise ValueError(f"{ADHOC!r} is where `ddl run` keeps single runs; choose another name")
        return value

    @field_validator("axes", mode="before")
    @classmethod
    def _one_grid_is_a_list_of_one(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if faults := few(self._faults()):
            raise ValueError(faults)
        return self

    def _faults(self) -> Iterator[str]:
        """Yield what is wrong with the names of its runs' fields, and with its size."""
        free = self._has_command
        yield from _wrong_names("base", self.base, free)
        for grid in self.axes:
            yield from _wrong_names("axes", grid, free)
            if twice := sorted(self.base.keys() & grid.keys()):
                yield f"{', '.join(twice)}: given both in base and in axes; keep one"
            for field, values in grid.items():
                if field == "seed" or (field == "repeat" and self.interleave):
                    yield f"axes: {field} is set by `repeats`; remove it"
                if not values:
                    yield f"axes.{field} is an empty list; name at least one value"
        if self.interleave:
            yield from _wrong_names("interleave.reference", self.interleave.reference, free)
        points = sum(math.prod(map(len, grid.values())) for grid in self.axes)
        if (runs := self.repeats * points) > MOST_RUNS:
            yield (
                f"repeats = {self.repeats} of {points:,} combinations of axes are {runs:,} "
                f"runs; a study may have {MOST_RUNS:,}: divide it, or leave values out"
            )

    @property
    def _has_command(self) -> bool:
        """Whether its runs are commands, which may have words that are no fields."""
        grids = (grid.get("framework", []) for grid in self.axes)
        return COMMAND in [self.base.get("framework"), *itertools.chain(*grids)]

    @model_validator(mode="after")
    def _reference_of_fields(self) -> Self:
        """Say by its command which run is the reference, where words of a command say it."""
        if not self.interleave:
            return self
        known = OF_COMMAND if self.base.get("framework") == COMMAND else run_fields()
        if not self.interleave.reference.keys() - {*known}:
            return self
        wanted = self.interleave.reference.items()
        found = {
            _run(point).command
            for point in self._points()
            if wanted <= {name: value for name, value in point.items() if _plain(value)}.items()
        }
        if len(found) != 1:
            raise ValueError(
                f"interleave.reference = {shown(self.interleave.reference)} must fit one "
                f"configuration alone, but it fits {len(found)}"
            )
        object.__setattr__(self, "interleave", Interleave(reference={"command": found.pop()}))
        return self

    def _points(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of each run."""
        grids = [{"repeat": [*range(self.repeats)], **grid} for grid in self.axes]
        for grid in grids:
            for point in itertools.product(*grid.values()):
                yield {**self.base, **dict(zip(grid, point, strict=True))}

    @classmethod
    def load(cls, path: Path) -> "Study":
        """Read a study from YAML; `SpecError` names the file and all faults."""
        with reading(path, cls):
            text = read_plain(path, MOST_BYTES).decode("utf-8-sig")
            fields = yaml.load(text, YamlLoader)
            try:
                study = cls.model_validate(fields)
            except ValidationError as error:
                own = describe(error, cls)
                others = (one for one in _faults_of_runs(fields) if one not in own.splitlines())
                raise SpecError("\n".join(filter(None, (own, few(others))))) from None
            study.expand()
        return study

    def expand(self) -> list[RunSpec]:
        """Return all runs, repeat by repeat, so that a drifting machine affects all alike.

        A grid that names `repeat` has these repeats alone.
        """
        runs = _all_runs(self._points())
        runs.sort(key=lambda run: run.repeat)
        counts = Counter(run.run_id for run in runs)
        if twice := [name for name, times in counts.items() if times > 1]:
            raise SpecError(
                "two grids of axes contain the same run, or one names a value twice: " + some(twice)
            )
        if self.interleave:
            _check_reference(self.interleave, runs)
        return runs

    def reference(self, repeat: int) -> RunSpec:
        """Return the baseline of one repeat, also of one beyond `repeats`.

        Where the runs do not fit in memory together, each block has a baseline of its own.
        """
        assert self.interleave is not None
        first = next(run for run in self.expand() if self.interleave.is_reference(run))
        return first.model_copy(update={"repeat": repeat})


def _faults_of_runs(fields: Any) -> Iterator[str]:
    """Yield a line for each wrong name and value of runs, in a file that has other faults."""
    if not isinstance(fields, dict):
        return
    own = {name: fields[name] for name in ("base", "axes", "interleave") if name in fields}
    try:
        Study.model_validate({"name": "study", "question": "?", **own})
    except ValidationError as error:
        yield from describe(error, Study).splitlines()
    values = list(itertools.islice(_values(own), MOST_RUNS))
    if ("framework", COMMAND) in values:  # whose words may be called as fields
        return
    for name, value in values:
        try:
            RunSpec.model_validate({name: value})
        except ValidationError as error:
            yield from describe(error, RunSpec, run_fields()).splitlines()


def _values(fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each field of runs that base or axes name, with each of its values."""
    known, axes = run_fields(), fields.get("axes")
    base = fields.get("base")
    single = {name: [value] for name, value in base.items()} if isinstance(base, dict) else {}
    for grid in (single, *(axes if isinstance(axes, list) else [axes])):
        for name, values in grid.items() if isinstance(grid, dict) else ():
            if name in known and isinstance(values, list):
                yield from ((name, value) for value in values)


def _all_runs(points: Iterable[dict[str, Any]]) -> list[RunSpec]:
    """Return the run of each point; `SpecError` with the faults of all of them, each once."""
    runs, faults = list[RunSpec](), list[str]()
    for point in points:
        try:
            runs.append(_run(point))
        except SpecError as error:
            faults += str(error).splitlines()
    if faults:
        raise SpecError(few(faults))
    return runs


def few(lines: Iterable[str]) -> str:
    """Return the first lines as a text, each once, and whether there are more."""
    first: list[str] = []
    for line in lines:
        if line in first:
            continue
        if len(first) == MOST_PROBLEMS:
            return "\n".join([*first, "  and more"])
        first.append(line)
    return "\n".join(first)


def _run(fields: dict[str, Any]) -> RunSpec:
    """Return a run; the images of a rank follow from those of a global batch, where it is given."""
    if fields.get("framework") == COMMAND:
        return RunSpec.parse(_filled(fields))
    left = {name: value for name, value in fields.items() if name != GLOBAL_BATCH}
    run = RunSpec.parse(left)
    if GLOBAL_BATCH not in fields:
        return run
    if "local_batch_size" in left:
        raise SpecError(f"{GLOBAL_BATCH} and local_batch_size are both given; keep one")
    images, parts = fields[GLOBAL_BATCH], run.world_size * run.accumulation
    if type(images) is not int or images < 1 or images % parts:
        raise SpecError(
            f"{GLOBAL_BATCH} = {shown(images)} is no multiple of {parts} (ranks x accumulation) of "
            "a run; choose another one, or other numbers of ranks"
        )
    return RunSpec.parse({**left, "local_batch_size": images // parts})


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a run, its command with the values of ``{name}`` in it."""
    known = run_fields()
    command = fields.get("command")
    if not isinstance(command, str):
        return fields
    values = {name: one.default for name, one in known.items()} | fields
    used: set[str] = set()

    def value(found: re.Match[str]) -> str:
        used.add(name := found[1])
        if name not in values or not _plain(values[name]):
            raise SpecError(
                f"command has {{{name}}}, but neither base nor axes give {name} a value"
            )
        return str(values[name])

    text = PLACEHOLDER.sub(value, command)
    if unused := sorted(fields.keys() - known.keys() - used):
        raise SpecError(
            f"{', '.join(unused)}: no field of a run, and the command has no {{{unused[0]}}}"
        )
    # A word may be called as a field that says nothing of a command: --precision {precision}.
    words = used - {*OF_COMMAND}
    own = {name: one for name, one in fields.items() if name in known and name not in words}
    return own | {"command": text}


def _check_reference(interleave: Interleave, runs: list[RunSpec]) -> None:
    fitting = [run for run in runs if run.repeat == 0 and interleave.is_reference(run)]
    if len(fitting) != 1:
        found = some([run.run_id for run in fitting]) or "none"
        raise SpecError(
            f"interleave.reference = {shown(interleave.reference)} must fit one configuration "
            f"alone, but it fits {found}; name fields that only the reference has"
        )


def _wrong_names(place: str, names: dict[str, Any], free: bool = False) -> Iterator[str]:
    """Yield retired and unknown fields; a command may have words of its own: `free`."""
    known = {*run_fields(), GLOBAL_BATCH}
    for name in sorted(names):
        if name in retired.SETTINGS:
            yield f"{place}: {retired.refusal(name)}"
        elif name not in known and not free:
            yield f"{place}: unknown field {shown(name)}; {choices(name, known)}"


class YamlLoader(yaml.SafeLoader):
    """YAML 1.2's plain values, and no field twice.

    PyYAML itself reads YAML 1.1: `no` is false, 010 is 8, 1:30 is 90, and 5e-4 is a text.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        """Refuse a field that is there twice."""
        node = super().compose_mapping_node(anchor)
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [name for name, times in names.items() if times > 1]:
            raise yaml.MarkedYAMLError(
                problem=f"field {shown(twice[0])} is there twice; keep one",
                problem_mark=node.start_mark,
            )
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Leave merge keys (``<<``) unread: YAML 1.2 has none, and a few lines make gigabytes."""


for _kind, _form, _beginnings in (
    ("null", "~|null|", ["~", "n", ""]),
    ("bool", "true|false", ["t", "f"]),
    ("int", "[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.inf|\.nan", list("-+.")),
):
    YamlLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"({_form})$"), _beginnings
    )
YamlLoader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))


class YamlDumper(yaml.SafeDumper):
    """Writer that quotes the texts which `YamlLoader` would read as something else."""

    yaml_implicit_resolvers = YamlLoader.yaml_implicit_resolvers
