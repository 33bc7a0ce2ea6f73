"""Whatever a user hands in by mistake ends in one message that names it, without a traceback."""

from collections.abc import Iterator

import pytest

from tests.cli.bad_inputs import CLEAR, Words, World, as_process, commands, in_process, mistakes
from tests.launch.running import ddl


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def _inside(world: World) -> Iterator[None]:
    with world.inside():
        yield


@pytest.mark.parametrize("path", sorted(commands()), ids=" ".join)
def test_a_mistake_in_any_command_is_told(path: Words, world: World) -> None:
    for bad in mistakes(path, world):
        outcome, said = in_process(bad)
        assert outcome == CLEAR, f"{outcome}: {bad}\n{said[-3000:]}"


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", ["unknown option", "file bad.yaml", "STUDY 'na\\udce9ve'"])
def test_a_process_says_the_same(kind: str, world: World) -> None:
    bad = next(bad for bad in mistakes(("study", "plan"), world) if bad.kind == kind)
    outcome, said = as_process(bad)
    assert outcome == CLEAR, said[-3000:]


def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDL_STALL_TIMEOUT", "soon")
    result = ddl("study", "status", "laptop", status=1)
    assert "DDL_STALL_TIMEOUT = 'soon'" in result.stderr
