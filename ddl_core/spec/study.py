"""What a study is: a question, and the grid of runs that answers it."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any, Self

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

from ddl_core.errors import SpecError
from ddl_core.spec.run import RunSpec, describe


class Turns(BaseModel):
    """That the arms of a study measure in turns, and what all are compared with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reference: dict[str, Any] = Field(description="RunSpec fields that one arm alone has")

    def is_reference(self, run: RunSpec) -> bool:
        """Say whether a run is of the arm that all are compared with: one that trains."""
        fields = run.model_dump()
        fits = all(fields[name] == value for name, value in self.reference.items())
        return fits and run.work == "train"


class Study(BaseModel):
    """A question and the grid of runs that answers it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    question: str
    base: dict[str, Any] = Field(default_factory=dict, description="RunSpec fields of all runs")
    axes: list[dict[str, list[Any]]] = Field(
        [{}], description="grids, each field -> values to combine"
    )
    repeats: PositiveInt = 3
    turns: Turns | None = Field(
        None, description="all arms are alive, and their epochs take turns on one machine"
    )

    @field_validator("axes", mode="before")
    @classmethod
    def _one_grid_is_a_list_of_one(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _knows_its_fields(self) -> Self:
        _check_fields("base", self.base)
        for grid in self.axes:
            _check_fields("axes", grid)
            twice = sorted(self.base.keys() & grid.keys())
            if twice:
                raise ValueError(f"{', '.join(twice)}: given both in base and in axes; keep one")
            for field, values in grid.items():
                if field in ("repeat", "seed"):
                    raise ValueError(f"axes: {field} is set by `repeats`; remove it")
                if not values:
                    raise ValueError(f"axes.{field} is an empty list; name at least one value")
        if self.turns:
            _check_fields("turns.reference", self.turns.reference)
        return self

    @classmethod
    def load(cls, path: Path) -> "Study":
        """Read a study from YAML.

        Raises
        ------
        SpecError
            If the file is missing, is not YAML, or has a wrong field.
        """
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SpecError(f"cannot read the study {path}: {error.strerror}") from None
        except yaml.YAMLError as error:
            raise SpecError(f"{path} is not valid YAML: {error}") from None
        try:
            study = cls.model_validate(content)
            study.expand()
        except ValidationError as error:
            raise SpecError(f"{path}:\n{describe(error, cls)}") from None
        except SpecError as error:
            raise SpecError(f"{path}:\n{error}") from None
        return study

    def expand(self) -> list[RunSpec]:
        """Return all runs, repeat by repeat, so that a drifting machine touches all arms alike.

        Raises
        ------
        SpecError
            If a combination is not a valid run.
        """
        runs = [
            RunSpec.parse({**self.base, **dict(zip(grid, point, strict=True)), "repeat": repeat})
            for repeat in range(self.repeats)
            for grid in self.axes
            for point in itertools.product(*grid.values())
        ]
        twice = [name for name, times in Counter(run.run_id for run in runs).items() if times > 1]
        if twice:
            raise SpecError(f"two grids of axes contain the same run: {', '.join(twice)}")
        if self.turns:
            _check_reference(self.turns, runs)
        return runs

    def reference(self, repeat: int) -> RunSpec:
        """Return the run that all others are compared with, in one repetition.

        Also one beyond `repeats`: where arms do not fit together, each block has one of its own.
        """
        assert self.turns is not None
        first = next(run for run in self.expand() if self.turns.is_reference(run))
        return first.model_copy(update={"repeat": repeat})


def _check_reference(turns: Turns, runs: list[RunSpec]) -> None:
    fitting = [run for run in runs if run.repeat == 0 and turns.is_reference(run)]
    if len(fitting) != 1:
        found = ", ".join(run.run_id for run in fitting) or "none"
        raise SpecError(
            f"turns.reference = {turns.reference} must fit one arm alone, but it fits {found}; "
            "name fields that only the reference has"
        )


def _check_fields(place: str, names: dict[str, Any]) -> None:
    unknown = sorted(names.keys() - RunSpec.model_fields.keys())
    if unknown:
        raise ValueError(
            f"{place}: unknown field {', '.join(map(repr, unknown))}; "
            f"choose from: {', '.join(sorted(RunSpec.model_fields))}"
        )
