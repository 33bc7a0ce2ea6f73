"""Whatever a user hands in by mistake ends in one message that names it: no traceback, no hang.

`python -m benchmarks.bad_inputs` tries many more.
"""

import os
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import papermill
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddl_core.cli.gate import Place
from ddl_core.errors import DDLError
from ddl_core.launch import lab_book
from ddl_core.records.paths import NOTEBOOKS
from tests.cli.bad_inputs import (
    CLEAR,
    Hang,
    Words,
    as_process,
    bad_inputs,
    commands,
    in_process,
    limited,
)
from tests.cli.bad_world import World, inside

EVERY = sorted(commands())
# Derandomised: the same inputs each time, so that a change alone can make a test fail.
FIXED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def _inside(world: World) -> Iterator[None]:
    with inside(world):
        yield


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_a_mistake_in_any_command_is_told(path: Words, world: World) -> None:
    @settings(FIXED, max_examples=20)
    @given(bad_inputs(world, path))
    def tell(bad: Any) -> None:
        outcome, said = in_process(bad)
        assert outcome == CLEAR, f"{outcome}: {bad}\n{said[-3000:]}"

    tell()


@pytest.mark.multiprocess
def test_a_process_says_the_same(world: World) -> None:
    @settings(FIXED, max_examples=8)
    @given(bad_inputs(world))
    def tell(bad: Any) -> None:
        outcome, said = as_process(bad)
        assert outcome == CLEAR, f"{outcome}: {bad}\n{said[-3000:]}"

    tell()


def test_every_place_is_looked_at() -> None:
    for path, command in commands().items():
        for parameter in command.params:
            if isinstance(parameter.type, click.Path):
                assert isinstance(parameter.type, Place), f"{path} {parameter.name}"


PARAMETERS = [
    (notebook, name)
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb"))
    for name in papermill.inspect_notebook(notebook)
]


@settings(FIXED, max_examples=60)
@given(
    st.sampled_from(PARAMETERS),
    st.one_of(
        st.sampled_from([None, {}, [], float("nan"), float("inf"), "a\nb", "\udcff", 2**70, b""]),
        st.floats(),
        st.lists(st.lists(st.integers())),
    ),
)
def test_a_parameter_of_a_notebook_is_looked_at(parameter: tuple[Path, str], value: Any) -> None:
    notebook, name = parameter
    kind = type(literal_eval(papermill.inspect_notebook(notebook)[name]["default"]))
    if type(value) is kind and value not in ("a\nb", "\udcff", 2**70):
        return
    with pytest.raises(DDLError, match=name):
        lab_book.execute(notebook, Path("never.ipynb"), {name: value})


def test_a_hang_is_noticed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Hang), limited(0.1):
        (tmp_path / "fifo").read_bytes()
